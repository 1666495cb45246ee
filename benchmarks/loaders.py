"""Row 25: `aioqueue.torch.DataLoader` beside PyTorch's, decoding a folder of JPEG files.

``python -m benchmarks.loaders PEER LIBRARY COUNT FOLDER`` runs one and prints its figures as
JSON.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Comparison, Mode, Row, installed

__all__ = ("measure",)

WORKERS = 2
BATCH = 32
COUNT = 3_200
FILES = 64
SAMPLE_EVERY = 10
"""Batches from one look at the memory to the next."""

PEERS = ("aioqueue", "torch", "limit")
"""The limit: as many bare processes, which decode and do nothing else, in memory that they keep."""

PAGE = 4096

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As the C library numbers what `mallopt` is to set."""


def make_files(folder: Path) -> None:
    """Pictures of 640x427, each another one, of about 140 KB."""
    from PIL import Image

    y, x = np.mgrid[0:427, 0:640]
    for number in range(FILES):
        noise = np.random.default_rng(number).integers(0, 60, (427, 640))
        image = np.stack(((x + noise) % 256, (y + noise) % 256, (x + y) % 256), axis=-1)
        Image.fromarray(image.astype("uint8")).save(folder / f"{number}.jpg", quality=90)


class Pictures:
    """A map-style dataset: what both libraries do with a picture releases the GIL."""

    def __init__(self, library: str, folder: Path, count: int) -> None:
        self.decode = DECODERS[library]
        self.paths = sorted(folder.iterdir())
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.decode(self.paths[index % len(self.paths)]), index


def by_pillow(path: Path) -> Any:
    """As torchvision's transforms have it: a tensor, channels first."""
    import torch
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((224, 224)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def by_opencv(path: Path) -> Any:
    import cv2

    return cv2.resize(by_opencv_whole(path), (224, 224))


def by_opencv_whole(path: Path) -> Any:
    """As large as it is: then a batch has 26 MB, which PyTorch's workers put into shared memory."""
    import cv2

    cv2.setNumThreads(1)  # the workers are what is compared
    return cv2.imdecode(np.fromfile(path, "uint8"), cv2.IMREAD_COLOR)


WHOLE = "OpenCV, full size"
DECODERS = {"Pillow": by_pillow, "OpenCV": by_opencv, WHOLE: by_opencv_whole}
NEEDS = {"Pillow": "PIL", "OpenCV": "cv2", WHOLE: "cv2"}


def loader_of(peer: str) -> Any:
    if peer == "torch":
        from torch.utils.data import DataLoader

        return DataLoader
    from aioqueue.torch import DataLoader as Ours

    return Ours


def step(batch: Any) -> None:
    """What any step does: look at all of a batch. What nobody has looked at is in no process."""
    pictures, _ = batch
    pictures.flatten()[::PAGE].sum()


def memory_now() -> dict[str, int]:
    """Bytes of this process and its children, added up: resident, and with what several share
    divided among them. Both with the batches that are in shared memory, and in no process yet."""
    processes = (os.getpid(), *children_of(os.getpid()))
    found = {"Rss": 0, "Pss": 0, "Pss_Shmem": 0}
    for process in processes:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        for name in found:
            match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
            assert match is not None
            found[name] += int(match[1]) * 1024
    unmapped = max(0, shared_by(processes) - found["Pss_Shmem"])
    return {"resident": found["Rss"] + unmapped, "proportional": found["Pss"] + unmapped}


def shared_by(processes: Iterable[int]) -> int:
    """Bytes of the shared memory that some processes hold open."""
    sizes: dict[int, int] = {}
    for process in processes:
        try:
            for file in Path(f"/proc/{process}/fd").iterdir():
                if os.readlink(file).startswith("/dev/shm/"):
                    status = file.stat()
                    sizes[status.st_ino] = 512 * status.st_blocks
        except OSError:
            continue  # it has just ended, or closed that
    return sum(sizes.values())


def children_of(process: int) -> list[int]:
    """The processes that it has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children_of(child)]
    return found


def run(peer: str, library: str, count: int, folder: Path) -> dict[str, float]:
    """An epoch; the first batch, which waits for the workers to start, is not in the rate."""
    if peer == "limit":
        return {"rate": rate_of_bare_processes(Pictures(library, folder, count))}
    loader = loader_of(peer)(
        Pictures(library, folder, count), BATCH, shuffle=True, num_workers=WORKERS
    )
    most = {"resident": 0, "proportional": 0}
    began = perf_counter()
    first = sampled = 0.0
    batches = 0
    for batches, batch in enumerate(loader, 1):
        first = first or perf_counter() - began
        step(batch)
        if batches % SAMPLE_EVERY == 0:
            sampled_at = perf_counter()
            most = {key: max(most[key], now) for key, now in memory_now().items()}
            sampled += perf_counter() - sampled_at
    seconds = perf_counter() - began - first - sampled
    return {"rate": (batches - 1) * BATCH / seconds, "first": first, **most}


def rate_of_bare_processes(pictures: Pictures) -> float:
    keep_memory()

    def decode(first: int) -> None:
        for index in range(first, len(pictures), WORKERS):
            _ = pictures[index]

    for index in range(8):  # which imports the library
        _ = pictures[index]
    start = multiprocessing.get_context("fork").Process
    workers = [start(target=decode, args=(first,)) for first in range(WORKERS)]
    began = perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(pictures) / (perf_counter() - began)


def keep_memory() -> None:
    """Have the C library keep what is freed.

    It would give back what a picture has taken before the next one comes, whose every page would
    then have to be cleared again: a quarter of the time. In a loader other memory lies behind it.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            library.mallopt(parameter, 2**25)  # the most that there may be


def run_apart(peer: str, library: str, count: int, folder: Path) -> dict[str, float]:
    arguments = [peer, library, str(count), str(folder)]
    command = [sys.executable, "-m", "benchmarks.loaders", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def measure(mode: Mode) -> Iterator[Comparison]:
    """Row 25: the rate of decoding, and the memory of all processes."""
    if not (installed("torch") and installed("PIL") and sys.platform == "linux"):
        return
    count = SAMPLE_EVERY * BATCH if mode.quick else COUNT
    libraries = [library for library in DECODERS if installed(NEEDS[library])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for library in libraries:
            runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
            for _ in range(mode.rounds):
                for peer in PEERS:
                    runs[peer].append(run_apart(peer, library, count, folder))
            what = f"decoding JPEG by {library}, 2 workers"
            yield comparison(runs, "rate", what, 1.2)
            yield comparison(runs, "rate", what, 0.97, over="limit")
            yield comparison(runs, "first", f"{library}: time to the first batch", 1.0)
            yield comparison(runs, "resident", f"{library}: memory, resident, with children", 0.5)
            what = f"{library}: memory, what is shared counted once"
            yield comparison(runs, "proportional", what, 1.0)


NAMES = {"torch": "PyTorch's DataLoader", "limit": "two bare processes"}
SHOWN: dict[str, Callable[[float], str]] = {
    "rate": lambda rate: f"{rate:,.0f} images/s",
    "first": lambda seconds: f"{1e3 * seconds:,.0f} ms",
    "resident": lambda size: f"{size / 2**20:.0f} MiB",
    "proportional": lambda size: f"{size / 2**20:.0f} MiB",
}


def comparison(
    runs: dict[str, list[dict[str, float]]], key: str, title: str, aim: float, over: str = "torch"
) -> Comparison:
    sides = ("aioqueue", over)
    ours, theirs = ([figures[key] for figures in runs[peer]] for peer in sides)
    return Comparison(
        Row("25", f"DataLoader: {title}", NAMES[over], aim, at_least=key == "rate"),
        [a / b for a, b in zip(ours, theirs, strict=True)],
        {peer: SHOWN[key](statistics.median([f[key] for f in runs[peer]])) for peer in sides},
    )


if __name__ == "__main__":
    _, peer, library, count, folder = sys.argv
    print(json.dumps(run(peer, library, int(count), Path(folder))))
