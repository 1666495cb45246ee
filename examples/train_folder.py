"""Train a small network on folders of JPEG files: augmentation, validation, a progress bar.

The label of an image is its folder: ``<root>/train/<label>/*.jpg``, ``<root>/valid/<label>/*.jpg``.
It needs ``pip install '.[examples,torch]'``; `shapes.py` draws some images::

    python examples/shapes.py shapes
    python examples/train_folder.py shapes
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from tqdm import tqdm

from aioqueue.inputs import files

parser = argparse.ArgumentParser()
parser.add_argument("root", type=Path)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--workers", type=int, default=4)
options = parser.parse_args()
labels = sorted(folder.name for folder in options.root.glob("train/*"))


def read(path: str) -> tuple[NDArray[np.uint8], int]:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    return pixels, labels.index(Path(path).parent.name)


def read_augmented(path: str, rng: np.random.Generator) -> tuple[NDArray[np.uint8], int]:
    pixels, label = read(path)
    pixels = pixels[:, :: rng.choice([-1, 1])]  # mirrored, or not
    return np.roll(pixels, rng.integers(-3, 4, size=2), axis=(0, 1)), label


train = (
    files(options.root / "train/*/*.jpg", shuffle=True, seed=7)
    .prepare(read_augmented, workers=options.workers)
    .batch(options.batch_size, drop_remainder=True)
)
valid = files(options.root / "valid/*/*.jpg").prepare(read, workers=options.workers).batch(256)

torch.set_num_threads(max(1, (os.cpu_count() or 1) - options.workers))  # workers have the others
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(labels))),
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)


def scores(images: NDArray[np.uint8]) -> torch.Tensor:
    return model(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)


monitor = train.monitor()
for epoch in train.epochs(options.epochs):
    model.train()
    for images, targets in tqdm(epoch, f"epoch {epoch.number}"):
        loss = nn.functional.cross_entropy(scores(images), torch.from_numpy(targets))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        right = [scores(images).argmax(1).numpy() == targets for images, targets in valid]
    print(f"epoch {epoch.number}: right {np.concatenate(right).mean():.1%}", flush=True)
print(monitor.verdict())
