"""How much of the package one has to read to follow something: the files that it runs through."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import aioqueue
from aioqueue import inputs

PACKAGE = Path(aioqueue.__file__).parent
MOST = {"a start": 73, "an item": 43, "a failure": 75, "a state": 21}
"""How many files each walk enters now. They may fall; they rise only where a file is cut in two
subjects."""


@contextmanager
def files_entered(is_counting: threading.Event | None = None) -> Iterator[set[str]]:
    """The files of the package that are run meanwhile, in whatever thread.

    Args:
        is_counting: only what runs while this is set counts; ``None`` for all.
    """
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (is_counting is None or is_counting.is_set()):
            found.add(frame.f_code.co_filename)

    gc.collect()
    gc.disable()  # what a collection finalizes is no part of the walk
    old = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    inside: set[str] = set()
    try:
        yield inside
    finally:
        gc.enable()
        sys.setprofile(old)
        threading.setprofile(None)
        names = {Path(name) for name in found}
        inside |= {
            path.relative_to(PACKAGE).as_posix() for path in names if path.is_relative_to(PACKAGE)
        }


def decode(number: int) -> float:
    if number < 0:
        raise ValueError("bad pixel")
    return number / 2


def a_pipeline(first: int, count: int = 40) -> Any:
    source = inputs.items([first, *range(1, count)], seed=1)
    return source.prepare(decode, workers=2).batch(4)


def a_start() -> set[str]:
    """From the call that begins a run to its first batch."""
    with a_pipeline(0).epochs(1) as epochs, files_entered() as entered:
        next(iter(next(epochs)))
    return entered


def an_item() -> set[str]:
    """From the source to the loop, while the pipeline runs: so many that workers make them, too."""
    is_counting = threading.Event()
    with files_entered(is_counting) as entered, a_pipeline(0, 4000).epochs(1) as epochs:
        batches = iter(next(epochs))
        next(batches)
        is_counting.set()
        for _ in range(900):
            next(batches)
        is_counting.clear()
    return entered


def a_failure() -> set[str]:
    pipeline = a_pipeline(-1)
    with files_entered() as entered, pytest.raises(ExceptionGroup):
        list(pipeline)
    return entered


def a_state() -> set[str]:
    with a_pipeline(0).epochs(2) as epochs:
        batches = iter(next(epochs))
        next(batches)
        with files_entered() as entered:
            epochs.state_dict()
    return entered


@pytest.mark.parametrize(
    "walk", [a_start, an_item, a_failure, a_state], ids=lambda one: one.__name__
)
def test_a_walk_enters_few_files(walk: Callable[[], set[str]]) -> None:
    list(a_pipeline(0))  # so that what is imported at its first use is there
    # Now and then a thread has to wait for another one, which is a way of its own.
    entered = min((walk() for _ in range(5)), key=len)
    most = MOST[walk.__name__.replace("_", " ")]
    assert len(entered) <= most, f"{len(entered)} files:\n" + "\n".join(sorted(entered))
    assert "pipeline/epochs.py" in entered


if __name__ == "__main__":
    list(a_pipeline(0))
    for walk in (a_start, an_item, a_failure, a_state):
        print(f"{walk.__name__}: {len(walk())} files")
