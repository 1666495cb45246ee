"""A library that hangs or crashes is reported, and does not take the run with it."""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from proofs.oracle.comparing import Difference, Verdict, Watched
from proofs.oracle.program import Program


def play(pipe: Connection, folder: str) -> None:
    """A worker of few words: the program's only line decides how it ends."""
    Path(folder, "was here").touch()
    while True:
        what, about = pipe.recv()
        program = about.program if what == "shrunk" else about
        pipe.send("TensorFlow")
        match program.lines[0]:
            case "hang there":
                threading.Event().wait()
            case "hang here":
                pipe.send("aioqueue")
                threading.Event().wait()
            case "crash":
                os._exit(1)
            case name:
                pipe.send("aioqueue")
                pipe.send(about if what == "shrunk" else Verdict(kinder=name))


def program(line: str) -> Program:
    return Program("made by hand", 1, (line,))


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("hang there", "TensorFlow hangs"),
        ("hang here", "aioqueue hangs"),
        ("crash", "TensorFlow crashes"),
    ],
)
def test_a_process_that_does_not_return_is_reported(line: str, lost: str) -> None:
    with Watched(limit=0.2, work=play) as watched:
        assert watched.compare(program(line)) == Verdict(lost=lost)


def test_the_next_program_gets_a_new_process() -> None:
    with Watched(limit=20, work=play) as watched:
        assert watched.compare(program("first")) == Verdict(kinder="first")
        assert watched.compare(program("crash")) == Verdict(lost="TensorFlow crashes")
        assert watched.compare(program("next")) == Verdict(kinder="next")


def test_a_difference_is_kept_that_cannot_be_made_shorter() -> None:
    difference = Difference(program("crash"), 0, [], [])
    with Watched(limit=20, work=play) as watched:
        assert watched.shrunk(difference) is difference


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Watched(limit=20, work=play) as watched:
        watched.compare(program("crash"))
        assert list(tmp_path.glob("*/was here"))
    assert not list(tmp_path.iterdir())
