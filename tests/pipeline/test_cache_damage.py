"""Files of a cache that are damaged, or made by somebody who means harm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import numbers
from aioqueue.pipeline.cache_file import rows_of_file
from tests.kit.children import output_of_module
from tests.kit.exact import Exact

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

KEY = b"aioqueue.layout"
FLIPS = 400


def example(number: int) -> dict[str, Any]:
    return {
        "matrix": np.arange(number % 5).reshape(-1, 1) + number,
        "number": number,
        "scalar": np.float32(number),
        "parts": ["s" * number, {"k": number}],
        "bytes": np.array([b"x" * number, b"y"], object),
    }


def written(folder: Path, function: Callable[[int], Any] = example) -> Path:
    """The only file of a cache."""
    assert len(list(numbers(20).prepare(function).cache(folder, key="1"))) == 20
    (part,) = folder.glob("part-*.arrow")
    return part


def rows(part: Path) -> list[Any]:
    return [row for some in rows_of_file(part, 0, 20) for row in some]


def rewritten(part: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the same columns with a layout that was changed."""
    file = pa.ipc.open_file(pa.py_buffer(part.read_bytes()))
    layout = json.loads(file.schema.metadata[KEY])
    change(layout)
    schema = file.schema.with_metadata({KEY: json.dumps(layout).encode()})
    columns = file.get_batch(0).columns
    with pa.OSFile(str(part), "wb") as out, pa.ipc.new_file(out, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def deep(layout: dict[str, Any]) -> None:
    inner = dict(layout)
    for _ in range(200):
        inner = {"is": "list", "names": [0], "parts": [inner]}
    layout.update(inner)


class Harmful:
    """A class that is no dataclass: a file must not make one."""

    def __del__(self) -> None:
        raise AssertionError("a file has made an object of this class")


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a class that is no dataclass": lambda layout: layout.update(
        {"is": "dataclass", "class": f"{__name__}:Harmful"}
    ),
    "a class that is no named tuple": lambda layout: layout.update(
        {"is": "named tuple", "class": f"{__name__}:Harmful"}
    ),
    "a function": lambda layout: layout.update({"is": "dataclass", "class": "os:system"}),
    "more parts than columns": lambda layout: layout["parts"].extend(layout["parts"]),
    "no parts": lambda layout: layout.pop("parts"),
    "parts that are no list": lambda layout: layout.update({"parts": 3}),
    "an unknown kind": lambda layout: layout.update({"is": "matrix"}),
    "another dtype": lambda layout: layout["parts"][0].update({"dtype": "V7"}),
    "objects": lambda layout: layout["parts"][0].update({"dtype": "O"}),
    "objects of a long dtype": lambda layout: layout["parts"][4].update({"dtype": "U1000000000"}),
    "more axes than there can be": lambda layout: layout["parts"][0].update({"axes": 10**9}),
    "axes that are no int": lambda layout: layout["parts"][4].update({"axes": 1.0}),
    "names that are none": lambda layout: layout.update({"names": [0, 1, 2, 3, 4]}),
    "a further field": lambda layout: layout["parts"][1].update({"more": 1}),
    "negative axes": lambda layout: layout["parts"][0].update({"axes": -1}),
    "a layout that is too deep": deep,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=list(HOSTILE))
def test_a_layout_that_does_not_fit(change: Callable[[Any], object], tmp_path: Path) -> None:
    part = written(tmp_path)
    rewritten(part, change)
    with pytest.raises(DataLossError):
        rows(part)


def test_offsets_that_lead_out_of_the_file(tmp_path: Path) -> None:
    part = written(tmp_path, lambda number: np.arange(number % 7))
    raw = part.read_bytes()
    offsets = np.cumsum([0, *(number % 7 for number in range(20))]).tobytes()
    at = raw.index(offsets) + 8 * 10
    part.write_bytes(raw[:at] + (2**40).to_bytes(8, "little") + raw[at + 8 :])
    with pytest.raises(DataLossError, match="damaged record batch 0"):
        rows(part)


def test_an_empty_file(tmp_path: Path) -> None:
    part = written(tmp_path)
    part.write_bytes(b"")
    with pytest.raises(DataLossError, match="an empty file"):
        rows(part)


@pytest.mark.slow
def test_random_changes(tmp_path: Path) -> None:
    """A program of its own reads them, which a mistake would crash."""
    part = written(tmp_path)
    reported = output_of_module(__name__, str(part))
    same, others, refused = map(int, reported.split())
    assert same + others + refused == FLIPS
    assert refused > 20


def main() -> None:
    """Change bytes of a file at random, and read it each time."""
    part = Path(sys.argv[1])
    raw, whole = part.read_bytes(), list(map(Exact, rows(part)))
    same = others = refused = 0
    random = Random(3)
    for _ in range(FLIPS):
        changed = bytearray(raw)
        changed[random.randrange(len(raw))] ^= random.choice([1, 0x40, 0x80, 0xFF])
        if random.random() < 0.5:
            at = random.randrange(len(raw) - 8) // 8 * 8
            changed[at : at + 8] = random.choice([2**40, 2**63 - 1, 0]).to_bytes(8, "little")
        part.write_bytes(changed)
        try:
            found = list(map(Exact, rows(part)))
        except (DataLossError, InvalidArgumentError, MemoryError):
            refused += 1
        else:
            same, others = (same + 1, others) if found == whole else (same, others + 1)
    print(same, others, refused)


if __name__ == "__main__":
    main()
