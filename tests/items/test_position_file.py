"""Keeping positions in files, and moving them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import Position, load_position, numbers, save_position
from tests.kit.children import environment
from tests.kit.resuming import run, shuffled

PIPELINE = shuffled().shuffle(9).batch(4)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    _, state = run(PIPELINE, 2, 3)
    save_position(tmp_path / "position.json", state)
    assert load_position(tmp_path / "position.json") == state
    assert os.listdir(tmp_path) == ["position.json"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert load_position(tmp_path / "none", default=None) is None
    with pytest.raises(FileNotFoundError):
        load_position(tmp_path / "none")


def test_every_byte_that_is_flipped_or_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    save_position(path, {"step": 12, "data": "abc"})
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(DataLossError):
                load_position(path, default=None)


def test_a_failed_write_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "position.json"
    save_position(path, {"step": 1})

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            with pytest.raises(OSError, match="no space"):
                save_position(path, {"step": 2})
        assert load_position(path) == {"step": 1}
        assert os.listdir(tmp_path) == ["position.json"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_one_that_interrupts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Of a signal handler, or of another thread: neither writes into what the other one writes."""
    path, larger = tmp_path / "position.json", {"step": 1, "data": "a" * 1000}
    calm = getattr(os, moment)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(os, moment, calm)
        save_position(path, {"step": 2})
        assert load_position(path) == {"step": 2}
        calm(*arguments)

    monkeypatch.setattr(os, moment, interrupted)
    save_position(path, larger)
    assert load_position(path) == larger
    assert os.listdir(tmp_path) == ["position.json"]


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    for state in ({"step": object()}, [1, 2], None):
        with pytest.raises(InvalidArgumentError, match=r"^state: "):
            save_position(tmp_path / "position.json", state)  # type: ignore[arg-type]
    # JSON would make strings of these keys, and sort them in another order.
    others: list[Any] = [{2: 1, 10: 2}, {"a": [{0: 1}]}, {"a": ({None: 1},)}, {"a": {True: 1}}]
    for other in others:
        with pytest.raises(InvalidArgumentError, match=r"^state: got the key .*plain JSON types"):
            save_position(tmp_path / "position.json", other)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_batches_are_skipped(count: int) -> None:
    whole, _ = run(PIPELINE, 2)
    _, state = run(PIPELINE, 2, 3)
    skipped = Position(state).skip(count)
    assert run(PIPELINE, 2, None, skipped)[0] == whole[3 + count :]
    assert run(PIPELINE, 2, None, Position(skipped).skip(2))[0] == whole[5 + count :]
    taken, later = run(PIPELINE, 2, 1, skipped)
    assert taken + run(PIPELINE, 2, None, later)[0] == whole[3 + count :]


def test_what_cannot_be_skipped() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^batches: got -1"):
        Position(run(PIPELINE, 2, 3)[1]).skip(-1)
    with pytest.raises(InvalidArgumentError, match="of a pipeline"):
        Position(numbers(3).position()).skip(1)


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    """As an open file would: a link may lead to the disk that outlives the machine."""
    kept = tmp_path / "kept"
    kept.mkdir()
    link, there = tmp_path / "run.json", kept / "run.json"
    link.symlink_to(there)
    for step in range(2):  # first there is no such file
        save_position(link, {"step": step})
        assert link.is_symlink()
        assert load_position(there) == load_position(link) == {"step": step}
    assert os.listdir(kept) == ["run.json"]


def test_permissions_stay(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_position(path, {})
    path.chmod(0o600)
    save_position(path, {"step": 1})
    assert path.stat().st_mode & 0o777 == 0o600


BOUNDED = """
import resource, sys
from pathlib import Path
from aioqueue import DataLossError
from aioqueue.inputs import load_position

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), -1))
try:
    print(load_position(sys.argv[1])["step"])
except DataLossError as error:
    print(error.fault)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds nothing there")
def test_it_takes_memory_for_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "position"

    def loaded() -> str:
        command = [sys.executable, "-c", BOUNDED, str(path)]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=50, check=False
        )
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout.strip()

    save_position(path, {"step": 7})
    assert loaded() == "7"
    with path.open("r+b") as file:
        file.truncate(2**40)  # of holes
    assert loaded() == f"torn position file, or none ({2**40} bytes; expected at most {2**28})"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_has_no_size(tmp_path: Path) -> None:
    save_position(tmp_path / "position", {"step": 7, "text": "x" * 2**20})
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / "position").read_bytes()
    thread = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    thread.start()
    assert load_position(tmp_path / "pipe")["step"] == 7
    thread.join()
