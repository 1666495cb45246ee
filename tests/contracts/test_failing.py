"""A failure reaches the consumer, says which item it was, and ends everything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aioqueue import DataLossError, InvalidArgumentError, inputs
from aioqueue.inputs import items
from tests.contracts import programs
from tests.contracts.programs import Program, asked, asked_formats, sink_of, sinks_asked
from tests.kit.examples import FORMATS, executed, numbers_in
from tests.kit.functions import refuses_five, refuses_five_in_a_task
from tests.kit.kinds import Kind, function_of
from tests.kit.resuming import How


class LostError(Exception):
    """Of the user's own function, or of the body of a loop."""


class Failing:
    """Fails for some items, as long as it is asked to."""

    def __init__(self, items: Collection[int]) -> None:
        self.items = items

    def __call__(self, value: int) -> int:
        if value in self.items:
            raise LostError(f"item {value}")
        return value


def raised_in(error: BaseException) -> Iterator[BaseException]:
    """An error, the members of its groups, and the causes of all of them."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from raised_in(one)
    if error.__cause__ is not None:
        yield from raised_in(error.__cause__)


async def in_a_task(pipeline: Any) -> list[Any]:
    return [value async for value in pipeline]


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])
@asked("failing", of="stage")
def test_a_failure_before_a_stage_reaches_the_user(
    program: Program, is_async: bool, folder: Path
) -> None:
    before = programs.rows().prepare(Failing(range(10)), workers=2)
    pipeline = program.pipeline(How(2), folder, before)
    with pytest.raises((ExceptionGroup, LostError)) as caught:
        if is_async:
            asyncio.run(in_a_task(pipeline))
        else:
            list(pipeline)
    failures = [one for one in raised_in(caught.value) if isinstance(one, LostError)]
    assert failures, f"{program.kind} hides the failure of the function before it"
    assert str(failures[0]).startswith("item ")


@asked("failing", of="stage")
def test_a_run_after_a_failure_has_all_examples(program: Program, folder: Path) -> None:
    """What failed is repaired, and the same pipeline runs once more: nothing of the first run
    is left in it."""
    failing = Failing([4])
    pipeline = program.pipeline(How(2), folder, programs.rows().prepare(failing, workers=2))
    with suppress(ExceptionGroup, LostError):
        list(pipeline)
    failing.items = []
    unharmed = program.pipeline(How(2), folder, programs.rows().prepare(Failing([]), workers=2))
    found = [list(numbers_in(value)) for value in pipeline]
    assert found == [list(numbers_in(value)) for value in unharmed]


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])
@asked("failing", of="source")
def test_a_failure_behind_a_source_names_the_item(
    program: Program, is_async: bool, folder: Path
) -> None:
    def fail(value: Any) -> None:
        raise LostError

    pipeline = program.pipeline(How(2), folder).prepare(fail, workers=2)
    with pytest.raises(ExceptionGroup) as caught:
        if is_async:
            asyncio.run(in_a_task(pipeline))
        else:
            list(pipeline)
    notes = "\n".join(
        note for one in raised_in(caught.value) for note in getattr(one, "__notes__", ())
    )
    assert re.search(r"epoch \d+, index \d+", notes), (
        f"{program.kind}: a failure does not say which item it was: {notes!r}"
    )


@asked("failing", of="executor")
def test_a_failure_in_a_worker_names_the_item(program: Program, folder: Path) -> None:
    functions = (refuses_five, refuses_five_in_a_task)
    pipeline = executed(program.kind.cls, How(2), functions, programs.rows())
    with pytest.raises(ExceptionGroup) as caught:
        list(pipeline)
    failures = [one for one in raised_in(caught.value) if isinstance(one, ValueError)]
    assert failures, f"{program.kind} hides the failure of the function"
    assert str(failures[0]) == "no five"
    assert re.search(r"epoch 0, index 5", "\n".join(failures[0].__notes__))


@asked("failing", of="executor")
def test_a_worker_skips_items_that_fail(program: Program, folder: Path) -> None:
    functions = (refuses_five, refuses_five_in_a_task)
    pipeline = executed(program.kind.cls, How(2), functions, programs.rows(), on_error="skip")
    assert sorted(pipeline) == [number for number in range(10) if number != 5]


def formats() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", asked_formats("failing"), ids=lambda one: one.name)


@formats()
def test_damaged_files_are_named(kind: Kind, tmp_path: Path) -> None:
    reader = programs.damaged_reader(kind, tmp_path)
    with pytest.raises(DataLossError, match=re.escape(str(tmp_path / "a"))):
        list(reader)


@formats()
def test_a_file_that_is_cut_short_is_damaged(kind: Kind, tmp_path: Path) -> None:
    example = FORMATS[kind.cls]
    path = example.write(tmp_path, "a")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 | 1])
    reader = function_of(kind, kind.functions[0])(str(path), **example.options)
    if not example.shows_cuts:
        list(reader)  # nothing in the file says where its end should be
        return
    with pytest.raises(DataLossError, match=re.escape(str(path))):
        list(reader)


@formats()
def test_a_reader_leaves_damaged_files_out(kind: Kind, tmp_path: Path) -> None:
    sound, damaged = tmp_path / "sound", tmp_path / "damaged"
    for path in (sound, damaged):
        path.mkdir()
    expected = reports_of(
        function_of(kind, kind.functions[0])(
            str(FORMATS[kind.cls].write(sound, "b")), **FORMATS[kind.cls].options
        ),
        sound,
    )
    found = reports_of(programs.damaged_reader(kind, damaged, on_error="skip"), damaged)
    assert found[-len(expected) :] == expected


@formats()
def test_a_file_that_is_not_there_is_named(kind: Kind, tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    with pytest.raises(OSError, match="nothing"):
        list(function_of(kind, kind.functions[0])(path, **FORMATS[kind.cls].options))


def reports_of(rows: Any, folder: Path) -> list[str]:
    """What rows say, without the folder of their files."""
    return [repr(row).replace(str(folder), "") for row in rows]


def sinks() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("kind", "example", "options"),
        [
            pytest.param(*one, id=f"{one[0].name} {' '.join(map(str, one[2].values()))}")
            for one in sinks_asked("failing")
        ],
    )


def back(kind: Kind, example: Any, folder: Path) -> list[str]:
    """The rows that were written, by the function that reads what the sink writes."""
    reader: Any = getattr(inputs, kind.cls._read_by)
    paths = sorted(map(str, folder.glob("part-*")))
    return reports_of(reader(paths, **example.read_options), folder)


@sinks()
def test_a_sink_continues_behind_what_was_written(
    kind: Kind, example: Any, options: Any, tmp_path: Path
) -> None:
    """A run fails at an item, and a later one writes the rest: each row is there once."""
    failing = Failing([7])
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def write(path: Path) -> None:
        sink = sink_of(kind, path, options)(rows_per_file=3)
        items(range(10)).prepare(failing).prepare(example.row).write(sink)

    with pytest.raises(ExceptionGroup):
        write(broken)
    failing.items = []
    write(broken)
    write(whole)
    rows = back(kind, example, whole)
    assert len(rows) == 10
    assert back(kind, example, broken) == rows, f"{kind}: a run that continues writes other rows"


@sinks()
def test_a_sink_names_the_row_that_does_not_fit(
    kind: Kind, example: Any, options: Any, tmp_path: Path
) -> None:
    with pytest.raises((InvalidArgumentError, ExceptionGroup)) as caught:
        sink = sink_of(kind, tmp_path / "x", options)(rows_per_file=2)
        items([*map(example.row, range(3)), example.unfit]).write(sink)
    errors = [one for one in raised_in(caught.value) if isinstance(one, InvalidArgumentError)]
    assert errors, f"{kind} raises {caught.value!r} for a row that does not fit"
    message = "".join([str(errors[0]), *getattr(errors[0], "__notes__", ())])
    assert "row 3" in message, f"{kind} does not say which row does not fit: {message}"
