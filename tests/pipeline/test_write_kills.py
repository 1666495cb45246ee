"""Processes that write are killed at random moments, again and again, and lose no row."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.kit.children import output_of_module
from tests.kit.killed import FORMATS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="nothing kills it here"),
]

MODULES = {"parquet": "pyarrow", "tfrecord": "google_crc32c"}


def run(name: str, folder: Path, *milliseconds: float) -> list[str]:
    """Write into a folder, and be killed after each of these times until it is done."""
    limits = map(str, milliseconds)
    reported = output_of_module("tests.kit.killed", name, str(folder), *limits)
    return reported.splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    """What other programs see in a folder."""
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_an_undisturbed_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES.get(name, "aioqueue"))
    (whole,) = run(name, tmp_path / "whole", 0)
    rows = int(whole.split()[0])
    random = Random(name)
    moments: set[str] = set()
    for folder in (tmp_path / f"killed {number}" for number in range(5)):
        limits = [random.uniform(1, limit) for limit in range(20, 4000, 20)]
        *kills, found = map(str.split, run(name, folder, *limits))
        assert {signal for signal, _ in kills} == {"SIGALRM"}
        assert len(kills) >= 3
        assert int(found[0]) == rows
        assert int(found[1]) == rows or int(found[1]) % 230 == 0
        assert read(name, folder) == read(name, tmp_path / "whole")
        moments |= {parts for _, parts in kills}
        if len(moments) >= 2:
            return
    raise AssertionError("all kills struck before the first part")


def read(name: str, folder: Path) -> Any:
    """What is in a folder; gzip writes the time of day, so of its files what they hold."""
    if name != "lines":
        return contents(folder)
    return [gzip.decompress(data) for _, data in sorted(contents(folder).items())]
