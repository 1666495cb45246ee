"""Manifests that are sound files, but that no run has written: each field, to the last level."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.json_files import MANIFEST
from aioqueue.inputs import load_position, numbers, save_position, to_json_lines, to_parquet

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

Place = tuple[str | int, ...]


class Edit(Enum):
    """What else is done to a field of a manifest than to give it a value."""

    DELETED = "deleted"
    FURTHER = "further"


DELETED, FURTHER = Edit.DELETED, Edit.FURTHER
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1.5, "x", "", [], {}, [[1, 2, 3]], [[1.5, 2]], ["5", "7"]),
    *({"x": 1}, DELETED, FURTHER),
)  # fmt: skip


def record(number: int) -> dict[str, int]:
    return {"number": number}


def write_parquet(folder: Path) -> None:
    numbers(20, seed=1).prepare(record).write(
        to_parquet(folder, rows_per_file=8), raise_single=True
    )


def write_json_lines(folder: Path) -> None:
    numbers(20, seed=1).prepare(record).write(
        to_json_lines(folder, rows_per_file=8), raise_single=True
    )


def fill_cache(folder: Path) -> None:
    cached = numbers(20, seed=1).prepare(record).cache(folder, key="1")
    with cached.epochs(1, raise_single=True) as epochs:
        for epoch in epochs:
            list(epoch)


def paths_in(value: Any, path: Place = ()) -> Iterator[Place]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(one, (*path, key))


def changed(document: dict[str, Any], path: Place, value: Any) -> dict[str, Any] | None:
    """The document with another value at a path; ``None`` if there is nothing to change."""
    document = copy.deepcopy(document)
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if value is DELETED:
        del at[path[-1]]
    elif value is not FURTHER:
        if type(at[path[-1]]) is type(value) and at[path[-1]] == value:
            return None
        at[path[-1]] = value
    elif isinstance(at[path[-1]], dict):
        at[path[-1]]["further"] = 1
    elif isinstance(at[path[-1]], list):
        at[path[-1]].append(1)
    else:
        return None
    return document


def changes(document: dict[str, Any], below: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths_in(document):
        if path[: len(below)] == below or below[: len(path)] == path:
            for value in VALUES:
                other = changed(document, path, value)
                if other is not None:
                    yield f"{path} = {value!r}", other


@pytest.mark.slow("parts", "cache")
@pytest.mark.parametrize(
    "below", [("standing", "carried"), ("standing", "rows"), ("parts",)], ids=str
)
@pytest.mark.parametrize("write", [write_parquet, write_json_lines, fill_cache])
def test_each_field_changed(write: Callable[[Path], None], below: Place, tmp_path: Path) -> None:
    """It is refused, or the run had no use for it: any other error would be one of Python's."""
    write(tmp_path / "whole")
    (manifest,) = (tmp_path / "whole").glob(f"*{MANIFEST}")
    document = dict(load_position(manifest))
    refused = 0
    for _, other in changes(document, below):
        folder = tmp_path / "changed"
        shutil.copytree(tmp_path / "whole", folder)
        save_position(folder / manifest.name, other)
        try:
            write(folder)
        except (DataLossError, InvalidArgumentError) as error:
            refused += isinstance(error, DataLossError)
        shutil.rmtree(folder)
    assert refused > 10


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("parts", 0), [8], "parts: got"),
        (("parts", 0), [8.0, 9], "parts: got"),
        (("parts", 0), [-8, 9], "parts: got"),
        (("parts", 0, 0), "8", "parts: got"),
        (("standing", "rows"), 1.5, "rows: got 1.5; expected an int of at least 0"),
        (("standing", "carried"), {"schema": 3}, "schema: got 3"),
        (("standing", "carried"), {"schema": "AAAA"}, "no schema of Arrow"),
        (("standing", "carried"), {"other": "AAAA"}, "there is a field 'other'"),
        (("standing", "state"), DELETED, "the field 'state' is missing"),
        (("standing",), {}, "parts without a point to resume from"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_run_has_written(path: Place, value: Any, fault: str, tmp_path: Path) -> None:
    write_parquet(tmp_path)
    (manifest,) = tmp_path.glob(f"*{MANIFEST}")
    other = changed(dict(load_position(manifest)), path, value)
    assert other is not None
    save_position(manifest, other)
    with pytest.raises(DataLossError, match=f"damaged manifest of parts.*{fault}"):
        write_parquet(tmp_path)
