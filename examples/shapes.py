"""Draw a small data set of JPEG files: circles, squares and triangles, in folders by their labels.

It needs Pillow (``pip install '.[images]'``). `examples/train_folder.py` trains on it::

    python examples/shapes.py shapes        # writes shapes/train/circle/000.jpg and so on
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

LABELS = ("circle", "square", "triangle")
SIDE = 32  # pixels
CORNERS = {"circle": 40, "square": 4, "triangle": 3}


def shape(label: str, rng: np.random.Generator) -> Image.Image:
    """One shape of any size and colour, anywhere, on a background with noise."""
    noise = rng.integers(0, 90, (SIDE, SIDE, 3), np.uint8)
    image = Image.fromarray(noise)
    radius = rng.uniform(8, 12)
    x, y = rng.uniform(radius, SIDE - radius, 2)
    # A little tilted, with a side at the top.
    turns = (rng.normal(0, 0.1) + 0.5 + np.arange(CORNERS[label])) / CORNERS[label]
    corners = np.column_stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)])
    points = [tuple(point) for point in (radius * corners + (x, y)).tolist()]
    red, green, blue = rng.integers(120, 256, 3).tolist()
    ImageDraw.Draw(image).polygon(points, fill=(red, green, blue))
    return image


def write(root: Path, train: int, valid: int, seed: int = 0) -> None:
    """Write so many files of each label."""
    rng = np.random.default_rng(seed)
    for part, count in (("train", train), ("valid", valid)):
        for label in LABELS:
            folder = root / part / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                shape(label, rng).save(folder / f"{number:03}.jpg", quality=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw shapes, as JPEG files in folders.")
    parser.add_argument("root", type=Path, help="the folder to write to")
    parser.add_argument("--train", type=int, default=600, help="files of each label to train on")
    parser.add_argument("--valid", type=int, default=100, help="files of each label to validate on")
    options = parser.parse_args()
    write(options.root, options.train, options.valid)
    print(f"wrote {3 * (options.train + options.valid):,} files to {options.root}")
