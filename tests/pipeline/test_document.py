"""States of pipelines of every shape: how large they are, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.inputs import load_position, numbers, save_position
from aioqueue.pipeline.nodes.progress import packed, unpacked
from tests.kit.children import ROOT
from tests.kit.resuming import (
    How,
    Shape,
    noisy,
    ordered_shapes,
    place_of,
    run,
    through_json,
    unordered_shapes,
    write_files,
)

EPOCHS = 2
NAMES = [
    *[("ordered", name) for name in ordered_shapes(Path())],
    *[("unordered", name) for name in unordered_shapes(Path())],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("states"))


def shape_of(folder: Path, kind: str, name: str) -> Shape:
    return (ordered_shapes if kind == "ordered" else unordered_shapes)(folder)[name]


def within(value: Any) -> Iterator[Any]:
    """A value, and all that is in it."""
    yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from within(one)


def held_in(state: Any) -> int:
    """How many examples a state names that are held."""
    held = [one["held"] for one in within(state) if isinstance(one, dict) and one.get("held")]
    return sum(len(unpacked(rows_in(one))) for one in held)


def rows_in(held: str) -> str:
    """The numbers of rows that are held, packed, in ``epochs:rows.parts``."""
    return held.partition(":")[2].partition(".")[0]


def buffers_in(state: Any) -> int:
    """How many examples its shuffle buffers have room for."""
    dicts = [one for one in within(state) if isinstance(one, dict)]
    return sum(one.get("buffer", 0) for one in dicts)


def sources_in(state: Any) -> int:
    """How many sources there are, those that were mixed in or are mixed as well."""
    dicts = [one for one in within(state) if isinstance(one, dict)]
    sources = [one for whole in dicts if "source" in whole for one in within(whole["source"])]
    kinds = [one["kind"] for one in sources if isinstance(one, dict) and "kind" in one]
    return sum(kind != "mixture" for kind in kinds)


MANY = ("of every kind", "three in a row", "trees", "buckets of trees", "packing trees")
"""Shapes whose examples have many components, or containers in containers."""


@pytest.mark.slow(but=("ordered-a rank of lines", "unordered-lines"))
@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_they_are_small(kind: str, name: str, folder: Path) -> None:
    """As docs/reference/positions.md says: by sources, stages and elements that are held."""
    shape = shape_of(folder, kind, name)
    count = len(run(shape(How()), EPOCHS)[0])
    for k in range(1, count + 1, max(1, count // 2)):
        _, state = run(shape(How()), EPOCHS, k)
        elements = max(buffers_in(state), held_in(state))  # buckets and rows hold some, too
        # A reader has two sources: itself, and its paths. A rank has to say what is left, too.
        of_each = STATED["source of a rank" if "left" in state["read"] else "source"]
        most = of_each * sources_in(state) + STATED["stage"] * stages_in(state)
        # What many components are comes on top.
        many = json.dumps(place_of(state)["layouts"]) if name.startswith(MANY) else ""
        assert len(json.dumps(state)) <= most + 4.2 * elements + len(many)


STATED = {"source": 450, "source of a rank": 750, "stage": 256}


def stages_in(state: Any) -> int:
    """How many stages there are, those of pipelines that are mixed as well."""
    dicts = [one for one in within(state) if isinstance(one, dict)]
    return sum(len(one["stages"]) for one in dicts if isinstance(one.get("stages"), list))


def test_the_page_states_these_sizes() -> None:
    page = (ROOT / "docs" / "reference" / "positions.md").read_text(encoding="utf-8")
    assert f"{STATED['source']} bytes ({STATED['source of a rank']} bytes with `shard`)" in page
    assert f"| each stage | {STATED['stage']} bytes |" in page
    assert "| each element of a shuffle buffer | 4.2 bytes;" in page


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    "stages",
    [
        lambda one, how: how.prepare(one, noisy),
        lambda one, how: one.shuffle(2),
        lambda one, how: one.batch(2, collate=list).unbatch(),
        lambda one, how: one.filter(bool).prefetch(2),
    ],
    ids=["prepare", "shuffle", "batch, unbatch", "filter, prefetch"],
)
def test_long_pipelines(stages: Any) -> None:
    """Each stage has its bytes, however many there are."""
    pipeline: Any = numbers(10**7, shuffle=True, seed=1)
    for _ in range(4):
        pipeline = stages(stages(pipeline, How()), How())
    pipeline = pipeline.batch(8)
    _, state = run(pipeline, 1, 20)
    most = STATED["source"] + STATED["stage"] * len(pipeline.stages) + 4.2 * 2 * 8
    assert len(json.dumps(state)) <= most


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
def test_a_large_buffer(size: int) -> None:
    pipeline = numbers(10**7, shuffle=True, seed=1).shuffle(size).batch(100)
    _, state = run(pipeline, 1, 20)
    most = STATED["source"] + STATED["stage"] * len(pipeline.stages) + 4.2 * size
    assert most / 3 < len(json.dumps(state)) <= most


def test_a_state_that_people_read() -> None:
    """By the stages and their functions, with the epoch, and what each has taken and holds."""

    def double(number: int) -> int:
        return 2 * number

    pipeline = numbers(100, shuffle=True, seed=7).prepare(double, workers=1).shuffle(3).batch(4)
    _, state = run(pipeline, 1, 5)
    counts = state["stages"][0].pop("counts")
    assert 23 <= counts.pop("prepared") == counts.pop("examples") <= 100  # some are ahead
    assert counts.pop("upto").startswith("0:")
    assert counts == {"left_out": 0, "skipped": 0, "retried": 0}
    held = state["stages"][1].pop("held")
    assert held.startswith("0:")
    assert len(unpacked(rows_in(held))) == 3
    assert len(state.pop("checksum")) == 16
    assert state == {
        "format": "aioqueue.position",
        "version": 3,
        "epoch": 0,
        "batches": 5,
        "skip": 0,
        "handed": 5,
        "run": "",
        "source": {
            "kind": "sequence",
            "length": 100,
            "seed": 7,
            "shuffle": True,
            "shard": [0, 1],
            "drop_remainder": False,
        },
        "read": {"epoch": 0, "given": 0},
        "stages": [
            {
                "kind": "prepare",
                "function": "double",
                "epoch": 0,
                "given": 0,
                "next": 0,
                "from": 0,
            },
            {
                "kind": "shuffle",
                "buffer": 3,
                "epoch": 0,
                "given": 20,
                "drawn": 20,
                "buffered": 3,
                "ready": 0,
                "taken": "0:22",
                "from": "-1:end",
            },
            {
                "kind": "batch",
                "epoch": 0,
                "given": 5,
                "made": 5,
                "taken": "0:19",
                "from": None,
                "held": None,
                "example": "one",
                "components": ["<i8"],
            },
        ],
    }


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
def test_plain_types_alone(kind: str, folder: Path) -> None:
    """A state of any shape is made of what JSON has, and comes back from it as it was."""
    shapes = ordered_shapes if kind == "ordered" else unordered_shapes
    for name in list(shapes(folder))[::5]:
        _, state = run(shapes(folder)[name](How()), EPOCHS, 2)
        for one in [state, *within(state)]:
            values = one.values() if isinstance(one, dict) else one
            assert {type(value) for value in values} <= {
                dict,
                list,
                str,
                int,
                float,
                bool,
                NoneType,
            }
        assert through_json(state) == pickle.loads(pickle.dumps(state)) == state


@pytest.mark.parametrize(
    "values",
    [
        [],
        [5],
        [3, 1, 2**40],
        [*range(20)],
        [*range(0, 900, 3)],
        [7, 9, 2, 100, 4, 5, 6, 1, 3, 2, 77],
        [*range(10**6, 10**6 + 40_000, 200)],
        [-(2**62), *range(9), 2**62],
    ],
)
def test_numbers_as_text(values: list[int]) -> None:
    text = packed(values)
    assert unpacked(text) == values
    assert len(values) > 8 or text == ",".join(map(str, values))
    assert not {":", "."} & {*text}  # which are between the columns of rows


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in a state."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_of(value[key], (*path, key))


def others(value: Any) -> Iterator[Any]:
    """What might stand there instead."""
    yield [value, "other"]
    yield None if value is not None else 0
    if isinstance(value, bool):
        yield not value
        yield int(value)
    elif isinstance(value, int):
        yield value + 1
        yield -value - 1
        yield str(value)
    elif isinstance(value, str) and value:
        yield value[:-1]
        yield value[1:]
        yield chr(ord(value[0]) ^ 1) + value[1:]
    elif isinstance(value, list | dict) and value:
        yield type(value)()


def changed(state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The state with each value changed, and each one left out."""
    for path in paths_of(state):
        *way, last = path
        where = state
        for key in way:
            where = where[key]
        for other in others(where[last]):
            copy = at = through_json(state)
            for key in way:
                at = at[key]
            at[last] = other
            yield path, copy
        copy = at = through_json(state)
        for key in way:
            at = at[key]
        del at[last]
        yield path, copy


class TestRefusing:
    @pytest.mark.slow(every=16)
    @pytest.mark.parametrize(("kind", "name"), NAMES)
    def test_each_field_changed_and_cut(self, kind: str, name: str, folder: Path) -> None:
        pipeline = shape_of(folder, kind, name)(How())
        _, state = run(pipeline, EPOCHS, 3)
        found = 0
        for path, other in changed(state):
            found += 1
            with pytest.raises(InvalidArgumentError, match=r"^position: got"):
                pipeline.epochs(EPOCHS, resume=other)
            assert path
        assert found > 60
        pipeline.epochs(EPOCHS, resume=state)

    @pytest.mark.parametrize("version", [1, 2])
    def test_an_earlier_version(self, version: int) -> None:
        pipeline = numbers(9).batch(2)
        state = {**pipeline.epochs(1).state_dict(), "version": version}
        message = rf"version {version}, .* earlier aioqueue .*; expected version 3: .*begin the run"
        with pytest.raises(InvalidArgumentError, match=message):
            pipeline.epochs(1, resume=state)

    def test_that_of_a_source(self) -> None:
        with pytest.raises(InvalidArgumentError, match="got one of a source; expected one that"):
            numbers(9).batch(2).epochs(1, resume=numbers(9).position())
        with pytest.raises(InvalidArgumentError, match="got one of a pipeline; expected one that"):
            numbers(9).after(numbers(9).batch(2).epochs(1).state_dict())

    def test_a_field_of_the_pipeline_is_named(self, folder: Path) -> None:
        pipeline = shape_of(folder, "ordered", "mix")(How())
        _, state = run(pipeline, EPOCHS, 3)
        for path, other in changed(state):
            if path[0] == "source" and len(path) > 1 and isinstance(path[-1], str):
                with pytest.raises(InvalidArgumentError) as refused:
                    pipeline.epochs(EPOCHS, resume=other)
                assert path[-1] in str(refused.value)

    @pytest.mark.slow
    def test_each_bit_of_its_text(self) -> None:
        pipeline = numbers(61, shuffle=True, seed=7).shuffle(9).batch(4)
        _, state = run(pipeline, EPOCHS, 3)
        text = json.dumps(state).encode("ascii")
        for bit in range(8 * len(text)):
            flipped = bytearray(text)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                other = json.loads(flipped)
            except ValueError:
                continue
            if other != state:
                with pytest.raises(InvalidArgumentError, match=r"^position: got"):
                    pipeline.epochs(EPOCHS, resume=other)

    @pytest.mark.slow
    def test_each_byte_and_each_length_of_its_file(self, tmp_path: Path) -> None:
        _, state = run(numbers(61, shuffle=True, seed=7).shuffle(9).batch(4), EPOCHS, 3)
        path = tmp_path / "position.json"
        save_position(path, state)
        data = path.read_bytes()
        for length in range(len(data)):
            path.write_bytes(data[:length])
            with pytest.raises(DataLossError):
                load_position(path)
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 1 << place % 8
            path.write_bytes(flipped)
            with pytest.raises(DataLossError):
                load_position(path)
