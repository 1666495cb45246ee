"""Data-parallel training: ranks that stay in step, though more items are bad on one than on others.

How the data flows, on each of two ranks::

    2,000 samples, in an order   ──► its own ──► read ──► batches ──► device ──► step
    that all ranks have in common      half    (some are              ahead       │
                                                skipped)            all-reduce of gradients

* `read_sample` raises for a sample that is damaged, and ``on_error="skip"`` leaves it out. The
  ranks meet different numbers of them. A rank that made a step less than the others would leave
  them waiting in their next all-reduce; so `shard` lets the latest samples of that rank come again
  in place of those it skipped: all make the same number of steps.
* ``to_device`` has the next batches on the device of the rank: its GPU, where there are as many as
  ranks, else the CPU.
* The ranks train by gloo and ``DistributedDataParallel``, and end with the same weights.

Run it::

    python examples/ranks.py                              # two processes, started here
    python examples/ranks.py --ranks 3
    torchrun --nproc-per-node 2 examples/ranks.py         # or by a launcher
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from aioqueue.inputs import Pipeline, numbers

FEATURES = 16
SEED = 7
HELD_OUT = 400
TRUTH = np.random.default_rng(SEED).normal(size=FEATURES).astype(np.float32)

Sample = tuple[NDArray[np.float32], np.float32]


# The data.


class Reader:
    """Reads samples; some are damaged.

    Args:
        damaged: how many of a thousand.
    """

    def __init__(self, damaged: int) -> None:
        self.damaged = damaged
        self.skipped: list[int] = []

    def read_sample(self, number: int) -> Sample:
        """What would be read from a file: features, and whether they belong to the class."""
        if number * 389 % 1000 < self.damaged:
            self.skipped.append(number)
            raise ValueError(f"sample {number} is damaged")
        features = np.random.default_rng(number).normal(size=FEATURES).astype(np.float32)
        return features, np.float32(features @ TRUTH > 0)


def training(
    reader: Reader, options: argparse.Namespace, rank: int, ranks: int
) -> Pipeline[Sample]:
    """What one rank trains on."""
    return (
        numbers(options.samples, shuffle=True, seed=SEED)
        .prepare(reader.read_sample, workers=2, on_error="skip")
        .batch(options.batch_size)
        .to_device(device_of(rank, ranks))
        .shard(rank, ranks)
    )


def device_of(rank: int, ranks: int) -> torch.device:
    """The device of a rank."""
    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    return torch.device("cuda", rank) if has_gpus else torch.device("cpu")


# The training, in each rank.


def train(rank: int, ranks: int, options: argparse.Namespace) -> str:
    """Train, in step with the others; what came of it, in a line."""
    device = device_of(rank, ranks)
    torch.set_num_threads(1)  # of PyTorch, beside the workers: the ranks share this machine
    torch.manual_seed(SEED)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1).to(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    loss_of = torch.nn.BCEWithLogitsLoss()
    reader = Reader(options.damaged)
    steps = []
    data = training(reader, options, rank, ranks)
    monitor = data.monitor()
    for epoch in data.epochs(options.epochs):
        steps.append(0)
        for features, labels in epoch:
            optimiser.zero_grad()
            loss_of(model(features)[:, 0], labels).backward()  # here the gradients are averaged
            optimiser.step()
            steps[-1] += 1
    right = accuracy(model, options, rank, ranks)
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return (
        f"rank {rank}  {device}  {' + '.join(map(str, steps))} steps,"
        f" {len(reader.skipped)} damaged samples, accuracy {right:.3f},"
        f" weights {zlib.crc32(weights):08x}\n        {monitor.verdict()}"
    )


def accuracy(model: torch.nn.Module, options: argparse.Namespace, rank: int, ranks: int) -> float:
    """The share of held-out samples that all ranks together get right: each of them once."""
    device = device_of(rank, ranks)
    held_out = numbers(HELD_OUT).prepare(lambda n: Reader(0).read_sample(10**6 + n), workers=2)
    batches = held_out.batch(options.batch_size).to_device(device)
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        # No step waits for the others here, so that ranks may have different numbers of them.
        for features, labels in batches.shard(rank, ranks, uneven="allow"):
            guesses = (model(features)[:, 0] > 0).float()
            counts += torch.stack(
                [(guesses == labels).sum(), torch.tensor(len(labels), device=device)]
            )
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


# The program.


def run(rank: int, ranks: int, meeting: str, options: argparse.Namespace) -> None:
    """The life of a rank."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        line = train(rank, ranks, options)
        lines: list[str] = [""] * ranks
        dist.all_gather_object(lines, line)
        if not rank:
            print("\n".join(lines), flush=True)
    finally:
        dist.destroy_process_group()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train on several ranks that stay in step.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="processes, unless a launcher has started them")
    add("--epochs", type=int, default=3, help="how often to go through the samples")
    add("--samples", type=int, default=2000, help="how many there are")
    add("--batch-size", type=int, default=32, help="samples of a batch, on each rank")
    add("--damaged", type=int, default=30, help="how many samples of a thousand cannot be read")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if "RANK" in os.environ:  # a launcher has started us
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        # It raises what a rank has raised, and ends the others.
        torch.multiprocessing.spawn(run, (options.ranks, meeting, options), nprocs=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
