"""JSON lines: each line is what `json` makes of it, or an error names the line."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import files, read_json_lines
from aioqueue.readers import lines as reading
from tests.conftest import Write


def value(draw: random.Random, depth: int = 3) -> Any:
    """A random value of JSON."""
    kind = draw.randrange(8 if depth else 6)
    if kind == 6:
        return [value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {f"k{n}": value(draw, depth - 1) for n in range(draw.randrange(4))}
    text = "".join(draw.choices('aé"\\\n\u2028 \U0001f600', k=draw.randrange(6)))
    return [None, True, draw.randrange(-(2**70), 2**70), draw.random(), text, 1e300][kind]


class TestRecords:
    def test_each_line_is_one(self, write: Write) -> None:
        path = write('{"a": 1}\r\n\n  \n[2, null]\n"x"')
        assert list(read_json_lines(path)) == [{"a": 1}, [2, None], "x"]
        keys = [key for key, _ in read_json_lines(path).with_keys()]
        assert keys == [f"{path}:1", f"{path}:4", f"{path}:5"]

    def test_of_several_compressed_files(self, write: Write, tmp_path: Path) -> None:
        for name in "ab":
            write(gzip.compress(f'{{"name": "{name}"}}\n'.encode()), f"{name}.jsonl.gz")
        found = files(tmp_path / "*.jsonl.gz")
        assert [record["name"] for record in read_json_lines(found)] == ["a", "b"]

    def test_for_a_loop_of_coroutines(self, write: Write) -> None:
        path = write("".join(f'{{"n": {n}}}\n' for n in range(9000)))

        async def main() -> list[int]:
            return [record["n"] async for record in read_json_lines(path)]

        assert asyncio.run(main()) == list(range(9000))

    def test_a_mark_of_byte_order(self, write: Write) -> None:
        path = write(b'\xef\xbb\xbf{"a": 1}\n')
        assert list(read_json_lines(path, encoding="utf-8-sig")) == [{"a": 1}]
        assert list(read_json_lines(path)) == [{"a": 1}]
        both = write(2 * b'\xef\xbb\xbf{"a": 1}\n')
        with pytest.raises(DataLossError, match=r"line 2: .* with a byte order mark, which"):
            list(read_json_lines(both))

    def test_a_file_of_one_array_is_distinguished_from_damage(self, write: Write) -> None:
        with pytest.raises(DataLossError, match=r"line 1: .*items\(json\.load\(file\)\)"):
            list(read_json_lines(write('[{"a": 1},\n{"a": 2}]\n')))
        for damaged in ("[1, 2]\n[3,\n", "[1, x]\n"):
            with pytest.raises(DataLossError) as caught:
                list(read_json_lines(write(damaged)))
            assert "json.load" not in str(caught.value)

    @pytest.mark.parametrize("seed", range(30))
    def test_are_those_of_json(
        self, seed: int, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In blocks of any size, and from any position."""
        draw = random.Random(seed)
        monkeypatch.setattr(reading, "_BLOCK", draw.choice([1, 3, 20, 2**16]))
        values = [value(draw) for _ in range(draw.randrange(1, 25))]
        lines = [json.dumps(one, ensure_ascii=draw.random() < 0.5) for one in values]
        ends = [draw.choice(["\n", "\r\n", "\n\n", "\n \t\n"]) for _ in lines]
        path = write("".join(map(str.__add__, lines, ends)))
        reader = read_json_lines(path)
        assert list(reader) == values
        for number, placed in enumerate(list(reader.placed()), 1):
            assert list(reader.after(reader.position(placed.place))) == values[number:]


class TestDamage:
    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ('{"a": 1', "not a JSON value: Expecting ',' delimiter at column 8"),
            ("{} {}", "not a JSON value: Extra data at column 4"),
            ("abc", "Expecting value at column 1"),
            ("[" * 200_000, "nested too deeply"),
            ("1" * 5000, "not a JSON value: .*digit"),
        ],
        ids=["cut", "two", "text", "deep", "long"],
    )
    def test_is_reported_after_what_is_sound(self, line: str, fault: str, write: Write) -> None:
        path = write(f"1\n\n2\n{line}\n3\n")
        read = []
        with pytest.raises(DataLossError, match=f"line 4: .*{fault}") as reported:
            for record in read_json_lines(path):
                read.append(record)  # noqa: PERF402  # what was read before the failure
        assert read == [1, 2]
        assert (reported.value.path, reported.value.offset) == (path, 5)

    def test_of_text(self, write: Write) -> None:
        with pytest.raises(DataLossError, match="line 2 is not utf-8 text"):
            list(read_json_lines(write(b'1\n"\xff"\n')))

    def test_of_a_line_that_is_too_long(self, write: Write) -> None:
        with pytest.raises(DataLossError, match="a line exceeds max_line_bytes=10"):
            list(read_json_lines(write('"' + "a" * 20 + '"\n'), max_line_bytes=10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": None}, "encoding: got None"),
        ({"encoding": "utf-16"}, "encoding: got 'utf-16'"),
        ({"max_line_bytes": 0}, "max_line_bytes: got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_json_lines("a", **arguments)
