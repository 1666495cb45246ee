"""Decode, augment and batch thousands of JPEG files; compare with the limit of the machine.

How the data flows::

    4,000 JPEG files   ──► worker 0 ─┐ in the order  RandomShuffleQueue
    (names, shuffled       worker 1 ─┼─►  of the ──► uint8[112,112,3], ──batches──► consumer
     in every epoch)       ...      ─┘    source     int64[]

* On the first run, the two photographs that come with scikit-learn are cut into labelled crops,
  written as JPEG files into a directory for each label.
* `prepare_image` reads one file, decodes it with Pillow, cuts and scales a random part of it,
  mirrors it and changes its brightness. It draws from the ``rng`` of its item, so that what it
  makes does not depend on which worker it runs.
* `shuffle_batch` runs it on several workers, keeps the order of the source, shuffles by a seed, and
  batches: the batches of two runs are the same, whatever the number of workers.
* Before that, as many bare threads call the same function on the same files and throw away what it
  returns: faster than that, nothing can be on this machine.

Run it::

    python examples/images.py                       # 10,000 images, and a contact sheet
    python examples/images.py --workers 4
    python examples/images.py --root ~/crops        # where the JPEG files are, or will be
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import threading
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

import aioqueue
from aioqueue import inputs

Pixels = NDArray[np.uint8]

SIDE = 112  # pixels of an image that is trained on
CROP = 192  # pixels of a crop, as it is stored
QUALITY = 90
LEVELS = np.arange(256)
PLACES = ("upper left", "upper right", "lower left", "lower right")
LABELS = tuple(f"{photo}, {place}" for photo in ("china", "flower") for place in PLACES)

INTERRUPTED = 130  # exit status of a program that Ctrl-C has ended: 128 + SIGINT

SHEET_COLUMNS, SHEET_ROWS, SHEET_GAP, SHEET_TEXT = 8, 4, 12, 18


# The files.


def write_crops(root: Path, count: int) -> Path:
    """The directory of the crops; they are cut and written if it is not there yet."""
    directory = root / f"crops-{count}"
    if directory.is_dir():
        return directory
    from sklearn.datasets import load_sample_images  # takes a second, which later runs need not

    root.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
    try:
        rng = np.random.default_rng(0)
        photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
        for label in LABELS:
            (unfinished / label.replace(", ", "-").replace(" ", "-")).mkdir()
        folders = sorted(unfinished.iterdir())
        order = sorted(LABELS)
        for number in tqdm(range(count), "cutting", unit="crops", disable=None, file=sys.stdout):
            label = LABELS[number % len(LABELS)]
            crop = cut(photos[LABELS.index(label) // len(PLACES)], label, rng)
            crop.save(folders[order.index(label)] / f"{number:05}.jpg", quality=QUALITY)
        unfinished.rename(directory)  # at once: an interrupted run leaves no half of it behind
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def cut(photo: Image.Image, label: str, rng: np.random.Generator) -> Image.Image:
    """A crop whose centre is in the quarter of the photograph that the label names."""
    place = PLACES.index(label.split(", ")[1])
    half_width, half_height = photo.width / 2, photo.height / 2
    half = CROP / 2
    x, y = rng.random(2) * (half_width - half, half_height - half)
    left = half_width - half + x if place % 2 else x
    top = half_height - half + y if place >= 2 else y
    return photo.crop((int(left), int(top), int(left) + CROP, int(top) + CROP))


def label_of(path: str) -> int:
    """The label of a crop: its directory says it."""
    photo, *place = Path(path).parent.name.split("-")
    return LABELS.index(f"{photo}, {' '.join(place)}")


# The work.


def prepare_image(path: str, rng: np.random.Generator) -> tuple[Pixels, int]:
    """Read, decode and augment one image."""
    left, top, scale, brightness = rng.random(4)
    size = CROP * (0.6 + 0.4 * scale)
    left, top = left * (CROP - size), top * (CROP - size)
    with Image.open(path) as stored:
        part = stored.resize(
            (SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + size, top + size)
        )
    if rng.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    levels = np.minimum(LEVELS * (0.8 + 0.4 * brightness), 255).astype(np.uint8)
    return levels[np.asarray(part)], label_of(path)


def bare_rate(paths: Sequence[str], threads: int, count: int) -> float:
    """Images per second of threads that do the same work and throw it away."""
    lock = threading.Lock()
    numbers = iter(range(count))

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            prepare_image(paths[number % len(paths)], np.random.default_rng(number))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    began = perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (perf_counter() - began)


class Progress:
    """How far the consumer has come; it keeps the first batch, and a checksum of all."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.prepared = 0
        self.seconds = 0.0
        self.checksum = 0
        self.images = np.empty((0, SIDE, SIDE, 3), np.uint8)
        self.labels = np.empty(0, np.int64)

    def see(self, images: Pixels, labels: NDArray[np.int64]) -> None:
        """One more batch has come."""
        if not self.done:
            self.images, self.labels = images, labels
        self.done += len(labels)
        self.checksum = zlib.crc32(labels.data, zlib.crc32(images.data, self.checksum))


async def consume(options: argparse.Namespace, directory: Path, progress: Progress) -> None:
    """Take batches until there are enough."""
    source = inputs.files(directory / "*" / "*.jpg", shuffle=True, seed=options.seed)
    began = perf_counter()
    async with aioqueue.Coordinator() as coord:
        batches = inputs.shuffle_batch(
            source,
            options.batch_size,
            coord=coord,
            min_after_dequeue=options.shuffle,
            seed=options.seed,
            function=prepare_image,
            workers=options.workers,
            ordered=True,
            dtypes=["uint8", "int64"],
            shapes=[(SIDE, SIDE, 3), ()],
        )
        with tqdm(
            total=progress.total, unit="images", disable=None, file=sys.stdout, dynamic_ncols=True
        ) as bar:
            async for images, labels in batches:
                progress.see(images, labels)
                ready = f"{batches.queue.size()} batches ready"
                bar.set_postfix_str(ready, refresh=False)
                bar.update(len(labels))
                if progress.done >= progress.total:
                    break
        progress.seconds = perf_counter() - began
        assert batches.runner is not None
        progress.prepared = batches.runner.statistics().prepared


# What is shown.


def draw_sheet(images: Pixels, labels: NDArray[np.int64], path: Path) -> None:
    """Write the first images of a batch, each over its label, as a PNG file."""
    shown = list(zip(images, labels, strict=True))[: SHEET_COLUMNS * SHEET_ROWS]
    rows = -(-len(shown) // SHEET_COLUMNS)
    columns = min(len(shown), SHEET_COLUMNS)
    cell_height = SIDE + SHEET_TEXT + SHEET_GAP
    sheet = Image.new(
        "RGB",
        (columns * (SIDE + SHEET_GAP) + SHEET_GAP, rows * cell_height + SHEET_GAP),
        (250, 250, 248),
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for number, (image, label) in enumerate(shown):
        row, column = divmod(number, SHEET_COLUMNS)
        left = SHEET_GAP + column * (SIDE + SHEET_GAP)
        top = SHEET_GAP + row * cell_height
        sheet.paste(Image.fromarray(image), (left, top))
        draw.text(
            (left + SIDE // 2, top + SIDE + SHEET_TEXT // 2 + 1),
            LABELS[label],
            fill=(70, 70, 70),
            font=font,
            anchor="mm",
        )
    sheet.save(path)


def summary(progress: Progress, bare: float, options: argparse.Namespace, sheet: Path) -> str:
    rate = progress.prepared / progress.seconds
    return (
        f"bare threads      {bare:,.0f} images/s ({options.workers} threads, nothing else)\n"
        f"through aioqueue  {rate:,.0f} images/s ({rate / bare:.0%} of that:"
        f" {progress.prepared:,} prepared in {progress.seconds:.1f} s,"
        f" {progress.done:,} taken in batches)\n"
        f"all batches       checksum {progress.checksum:08x} for seed {options.seed}\n"
        f"contact sheet     {sheet}"
    )


# The program.


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Decode, augment and batch JPEG files; compare with the limit of the machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    cache = Path(tempfile.gettempdir()) / "aioqueue-images"
    add = parser.add_argument
    add("--root", type=Path, default=cache, help="where the JPEG files are, or will be written")
    add("--crops", type=positive, default=4000, help="JPEG files to write, if they are not there")
    add("--images", type=positive, default=10_000, help="how many to take")
    add("--batch-size", type=positive, default=64, help="images per batch")
    add("--shuffle", type=int, default=768, help="images that a batch is at least drawn from")
    add("--workers", type=positive, default=os.cpu_count() or 2, help="threads that prepare images")
    add("--seed", type=int, default=7, help="of the order, the augmentation and the shuffling")
    add("--sheet", type=Path, help="where to write the contact sheet, if not under --root")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; expected at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress(options.images)
    status = 0
    try:
        directory = write_crops(options.root, options.crops)
        paths = [str(path) for path in sorted(directory.glob("*/*.jpg"))]
        print(f"{len(paths):,} crops with {len(LABELS)} labels in {directory}", flush=True)
        bare = bare_rate(paths, options.workers, options.images)
        asyncio.run(consume(options, directory, progress))
        sheet = options.sheet or options.root / "contact-sheet.png"
        draw_sheet(progress.images, progress.labels, sheet)
        print(summary(progress, bare, options, sheet), flush=True)
    except* KeyboardInterrupt:
        status = INTERRUPTED
        print(f"interrupted after {progress.done:,} of {progress.total:,} images", flush=True)
    except* Exception as failures:
        status = 1
        traceback.print_exception(failures)
        print(f"stopped by a failure after {progress.done:,} of {progress.total:,} images")
    return status


if __name__ == "__main__":
    sys.exit(main())
