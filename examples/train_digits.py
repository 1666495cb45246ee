"""Train a digit classifier on 1,797 real images, fed by workers through a shuffle queue.

How the data flows::

    1,438 digits ──► worker 0 ─┐                                  ┌─► train step
      (training)     worker 1 ─┤   RandomShuffleQueue    batches  │   (main thread)
                     worker 2 ─┼─► float32[64], int64[] ────64───►┤
                     worker 3 ─┘   1,024 elements                 └─► progress, summary

* Each worker is a plain function on a thread of its own. It draws a digit, turns, scales and shifts
  it a little, and enqueues it. While the queue is full, it waits.
* The queue shuffles: a batch is drawn at random from at least 256 elements.
* The main thread takes batches and trains a network of one hidden layer, written in NumPy.
* The coordinator stops all of it together: after the last step, when a worker fails, at Ctrl-C.

The job is written once. `train_async` and `train_threads` feed it through one face each::

    python examples/train_digits.py                              # awaited, on asyncio
    python examples/train_digits.py --loop trio                  # awaited, on trio
    python examples/train_digits.py --face sync                  # blocking
    python examples/train_digits.py --fail-at 5000               # what a failing worker looks like
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from tqdm import tqdm

import aioqueue
from aioqueue import sync

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

SIDE = 8  # a digit has 8 x 8 pixels
MARGIN = 2  # and as many empty ones on every side, for `augment` to sample from
PADDED = SIDE + 2 * MARGIN
CENTRE = (PADDED - 1) / 2
GRID = np.indices((SIDE, SIDE)).reshape(2, -1) + MARGIN - CENTRE
CORNERS = np.array([[0], [1], [PADDED], [PADDED + 1]])
LEAST = np.array([-0.2, 0.9, -0.6, -0.6])  # radians, factor, pixels down, pixels to the right
MOST = np.array([0.2, 1.1, 0.6, 0.6])

CAPACITY = 1024
MIN_AFTER_DEQUEUE = 256
HIDDEN = 128
HELD_OUT = 359
INTERRUPTED = 130  # exit status of a program that Ctrl-C has ended: 128 + SIGINT


# The data.


@dataclass(frozen=True)
class Digits:
    """Images as rows of padded pixels, and which digit each shows."""

    images: Floats
    labels: Labels


def load_split(seed: int) -> tuple[Digits, Digits]:
    """The digits to train on, and those held out."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.zeros((len(pixels), PADDED, PADDED), dtype=np.float32)
    images[:, MARGIN:-MARGIN, MARGIN:-MARGIN] = pixels.reshape(-1, SIDE, SIDE) / 16
    order = np.random.default_rng(seed).permutation(len(pixels))
    flat, labels = images.reshape(len(pixels), -1)[order], labels.astype(np.int64)[order]
    return (
        Digits(flat[HELD_OUT:], labels[HELD_OUT:]),
        Digits(flat[:HELD_OUT], labels[:HELD_OUT]),
    )


def normalise(pixels: Floats) -> Floats:
    """Shift and scale brightness, 0 to 1, to what the network learns from best."""
    normal: Floats = (pixels - np.float32(0.3)) / np.float32(0.37)
    return normal


def augment(image: Floats, rng: np.random.Generator) -> Floats:
    """Turn, scale and shift one padded digit a little; return its 64 pixels.

    For each pixel of the result: find where it comes from, and mix the four pixels around there.
    """
    angle, zoom, down, right = LEAST + (MOST - LEAST) * rng.random(4)
    cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
    source = np.array([[cos, -sin], [sin, cos]]) @ GRID + [[CENTRE + down], [CENTRE + right]]
    corner = source.astype(np.intp)
    y, x = source - corner
    four = image[corner[0] * PADDED + corner[1] + CORNERS]
    upper = four[0] + (four[1] - four[0]) * x
    lower = four[2] + (four[3] - four[2]) * x
    pixels: Floats = (upper + (lower - upper) * y).astype(np.float32)
    return pixels


def centre_pixels(digits: Digits) -> Floats:
    """Images as they are, without their margins."""
    images = digits.images.reshape(-1, PADDED, PADDED)[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    return images.reshape(len(images), -1)


# The model.


class Classifier:
    """One hidden layer and a softmax, trained with Adam."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = [(SIDE * SIDE, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        self.weights: list[Floats] = [
            rng.normal(0, math.sqrt(2 / shape[0]), shape).astype(np.float32)
            if len(shape) == 2
            else np.zeros(shape, dtype=np.float32)
            for shape in shapes
        ]
        self.means = [np.zeros_like(weight) for weight in self.weights]
        self.squares = [np.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def scores(self, images: Floats) -> tuple[Floats, Floats]:
        """The hidden layer, and a score per class."""
        into, into_bias, out, out_bias = self.weights
        hidden = np.maximum(images @ into + into_bias, 0)
        return hidden, hidden @ out + out_bias

    def step(self, images: Floats, labels: Labels) -> float:
        """Learn from one batch; return its loss."""
        hidden, scores = self.scores(images)
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -float(np.log(likely[rows, labels] + 1e-9).mean())
        likely[rows, labels] -= 1
        likely /= len(labels)
        back = (likely @ self.weights[2].T) * (hidden > 0)
        self._descend([images.T @ back, back.sum(axis=0), hidden.T @ likely, likely.sum(axis=0)])
        return loss

    def accuracy(self, images: Floats, labels: Labels) -> float:
        """The share of images that are recognised."""
        return float((self.scores(images)[1].argmax(axis=1) == labels).mean())

    def _descend(self, gradients: list[Floats], rate: float = 0.002) -> None:
        self.steps += 1
        rate *= math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for weight, gradient, mean, square in zip(
            self.weights, gradients, self.means, self.squares, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            weight -= rate * mean / (np.sqrt(square) + 1e-8)


# The job: all that does not depend on the face.


class Progress:
    """A bar on a terminal; elsewhere a line every second."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.began = perf_counter()
        self.next_line = self.began
        self.bar = None
        if sys.stdout.isatty():
            self.bar = tqdm(
                total=total, unit="examples", unit_scale=True, file=sys.stdout, dynamic_ncols=True
            )

    def advance(self, n: int, text: str) -> None:
        self.done += n
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(n)
        elif perf_counter() >= self.next_line or self.done == self.total:
            self.next_line = perf_counter() + 1
            rate = self.done / (perf_counter() - self.began)
            print(
                f"{self.done:,}/{self.total:,} examples, {rate:,.0f} examples/s, {text}", flush=True
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Job:
    """What is trained, on what, and how far it has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.digits, self.held_out = load_split(seed=0)
        self.batch_size: int = options.batch_size
        epoch = math.ceil(len(self.digits.labels) / self.batch_size)
        self.steps: int = options.steps or options.epochs * epoch
        self.model = Classifier(options.seed)
        self.progress = Progress(self.steps * self.batch_size)
        self.queue: aioqueue.RandomShuffleQueue | sync.RandomShuffleQueue | None = None
        self.monitor: aioqueue.Monitor | None = None

    def queue_arguments(self) -> dict[str, Any]:
        """What the queue is made with, in either face."""
        return {
            "capacity": CAPACITY,
            "min_after_dequeue": MIN_AFTER_DEQUEUE,
            "dtypes": ["float32", "int64"],
            "shapes": [(SIDE * SIDE,), ()],
            "seed": self.options.seed,
            "name": "digits",
        }

    def workers(self, queue: sync.RandomShuffleQueue) -> list[Callable[[], None]]:
        """One function per worker, each of which prepares and enqueues one example per call."""
        return [self._worker(queue, number) for number in range(self.options.workers)]

    def _worker(self, queue: sync.RandomShuffleQueue, number: int) -> Callable[[], None]:
        rng = np.random.default_rng((self.options.seed, number))
        fail_at = self.options.fail_at if number == 0 else None
        digits, made = self.digits, 0

        def prepare_digit() -> None:
            nonlocal made
            made += 1
            if made == fail_at:
                raise ValueError(f"example {made} cannot be prepared (--fail-at {fail_at})")
            index = rng.integers(len(digits.labels))
            pixels = normalise(augment(digits.images[index], rng))
            queue.enqueue((pixels, digits.labels[index]))

        return prepare_digit

    def step(self, images: Floats, labels: Labels) -> bool:
        """Train on one batch; tell whether it was the last."""
        assert self.queue is not None
        loss = self.model.step(images, labels)
        fill = f"queue {self.queue.size()}/{CAPACITY}"
        self.progress.advance(len(labels), f"loss {loss:.3f}, {fill}")
        return self.model.steps == self.steps

    def summary(self) -> str:
        """What to print at the end, however the run has ended."""
        seconds = perf_counter() - self.progress.began
        waited = self.queue.statistics().dequeue_wait if self.queue is not None else 0.0
        accuracy = self.model.accuracy(
            normalise(centre_pixels(self.held_out)), self.held_out.labels
        )
        return (
            f"held-out accuracy  {accuracy:.3f} ({HELD_OUT} digits)\n"
            f"throughput         {self.progress.done / seconds:,.0f} examples/s"
            f" ({self.progress.done:,} examples in {seconds:.1f} s)\n"
            f"waited for data    {waited / seconds:.1%} of the time"
            + (f"\nverdict            {self.monitor.verdict()}" if self.monitor is not None else "")
        )


# The two faces.


async def train_async(job: Job) -> None:
    """Feed the job from a queue that is awaited, in asyncio or trio."""
    queue = job.queue = aioqueue.RandomShuffleQueue(**job.queue_arguments())
    async with aioqueue.Coordinator() as coord:
        job.monitor = coord.monitor()
        coord.start(aioqueue.QueueRunner(queue, job.workers(queue.sync)))
        await steps_async(job, queue, coord)


async def steps_async(
    job: Job, queue: aioqueue.RandomShuffleQueue, coord: aioqueue.Coordinator
) -> None:
    """Train until the job has ended or is stopped.

    Not within the block itself: CPython 3.13 and 3.14 may leave a block without its end when Ctrl-C
    strikes where a loop in it goes round.
    """
    async for images, labels in queue.batches(job.batch_size):
        if coord.should_stop() or job.step(images, labels):
            break


def train_threads(job: Job) -> None:
    """Feed the job from a queue that blocks."""
    queue = job.queue = sync.RandomShuffleQueue(**job.queue_arguments())
    with sync.Coordinator() as coord:
        job.monitor = coord.monitor()
        coord.start(sync.QueueRunner(queue, job.workers(queue)))
        steps(job, queue, coord)


def steps(job: Job, queue: sync.RandomShuffleQueue, coord: sync.Coordinator) -> None:
    """The same in a thread."""
    for images, labels in queue.batches(job.batch_size):
        if coord.should_stop() or job.step(images, labels):
            break


# The program.


def run(job: Job) -> None:
    """Train through the face, and on the event loop, that the options name."""
    try:
        if job.options.face == "sync":
            train_threads(job)
        elif job.options.loop == "trio":
            importlib.import_module("trio").run(train_async, job)
        elif job.options.loop == "uvloop":
            importlib.import_module("uvloop").run(train_async(job))
        else:
            asyncio.run(train_async(job))
    finally:
        job.progress.close()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a digit classifier, fed by workers through a shuffle queue.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--face", choices=["async", "sync"], default="async", help="awaited, or blocking")
    add("--loop", choices=["asyncio", "uvloop", "trio"], default="asyncio", help="for --face async")
    add("--epochs", type=positive, default=40, help="how often to see as many digits as there are")
    add("--steps", type=positive, help="how many batches to train on, instead of --epochs")
    add("--batch-size", type=positive, default=64, help="digits per batch")
    add("--workers", type=positive, default=4, help="threads that prepare digits")
    add("--seed", type=int, default=7, help="of the weights, the workers and the queue")
    add("--fail-at", type=positive, metavar="N", help="the first worker fails at its N-th digit")
    options = parser.parse_args(arguments)
    if options.loop != "asyncio" and importlib.util.find_spec(options.loop) is None:
        parser.error(f"--loop {options.loop}: not installed; get it by: pip install {options.loop}")
    return options


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; expected at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    job = Job(parse(arguments))
    status, ending = 0, ""
    try:
        run(job)
    except* KeyboardInterrupt:  # from trio it may come in a group
        status, ending = INTERRUPTED, "interrupted"
    except* Exception as failures:
        traceback.print_exception(failures)
        status, ending = 1, "stopped by a failure"
    if ending:
        print(f"{ending} after {job.model.steps:,} of {job.steps:,} steps")
    print(job.summary(), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
