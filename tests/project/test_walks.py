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
MOST = {"an item": 55, "a failure": 57, "a state": 15}
"""How many files each walk enters now. They may fall, never rise."""


@contextmanager
def files_entered() -> Iterator[set[str]]:
    """The files of the package that are run meanwhile, in whatever thread."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
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


def a_pipeline(first: int) -> Any:
    source = inputs.items([first, *range(1, 40)], seed=1)
    return source.prepare(decode, workers=2).batch(4)


def an_item() -> set[str]:
    with a_pipeline(0).epochs(1) as epochs, files_entered() as entered:
        next(iter(next(epochs)))
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


@pytest.mark.parametrize("walk", [an_item, a_failure, a_state], ids=lambda one: one.__name__)
def test_a_walk_enters_few_files(walk: Callable[[], set[str]]) -> None:
    list(a_pipeline(0))  # so that what is imported at its first use is there
    entered = walk()
    most = MOST[walk.__name__.replace("_", " ")]
    assert len(entered) <= most, f"{len(entered)} files:\n" + "\n".join(sorted(entered))
    assert "inputs/pipeline/epochs.py" in entered


if __name__ == "__main__":
    list(a_pipeline(0))
    for walk in (an_item, a_failure, a_state):
        print(f"{walk.__name__}: {len(walk())} files")
