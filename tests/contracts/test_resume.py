"""A pipeline that was left behind any of its values gives the rest of them, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import numbers
from aioqueue.pipeline.stages.transform import HoldingTransform
from tests.contracts.programs import Program, asked
from tests.kit.exact import Exact
from tests.kit.resuming import Batches, How, run, through_json

EPOCHS = 2


def whole_and_states(pipeline: Any) -> tuple[Batches, list[Any]]:
    """What a run gives, and the position before it and behind each value."""
    found: Batches = []
    with pipeline.epochs(EPOCHS) as epochs:
        states = [through_json(epochs.state_dict())]
        for epoch in epochs:
            for value in epoch:
                found.append((epoch.number, Exact(value)))
                states.append(through_json(epochs.state_dict()))
    return found, states


async def rest_in_tasks(pipeline: Any, state: Any) -> Batches:
    async with pipeline.epochs(EPOCHS, resume=state) as epochs:
        return [(epoch.number, Exact(value)) async for epoch in epochs async for value in epoch]


@asked("resume")
def test_resumes_behind_each_value(program: Program, folder: Path) -> None:
    whole, states = whole_and_states(program.pipeline(How(2), folder))
    assert whole, f"the example of {program.kind} gives nothing: it shows nothing"
    for at, state in enumerate(states):
        pipeline = program.pipeline(How(1 + at % 3), folder)
        if at % 4 == 1:
            found = asyncio.run(rest_in_tasks(pipeline, state))
        else:
            found, _ = run(pipeline, EPOCHS, None, state)
        assert found == whole[at:], (
            f"{program.kind} does not resume behind value {at}: what its state keeps differs from"
            " what it needs"
        )


@asked("resume")
def test_resumes_what_was_resumed(program: Program, folder: Path) -> None:
    whole, _ = run(program.pipeline(How(1), folder), EPOCHS)
    found: Batches = []
    state = None
    while True:
        more, state = run(program.pipeline(How(2), folder), EPOCHS, 2, state)
        found += more
        if len(more) < 2:
            break
    assert found == whole


@asked("resume")
def test_refuses_a_position_of_another_pipeline(program: Program, folder: Path) -> None:
    """A position says which pipeline it is of: none that is of this kind fits another."""
    _, state = run(program.pipeline(How(1), folder), EPOCHS, 1)
    other = numbers(7, seed=1).enumerate(5).take(3)
    try:
        run(other, EPOCHS, 1, state)
    except InvalidArgumentError:
        return
    raise AssertionError(f"{program.kind}: its position fits another pipeline")


@asked("resume", of="stage")
def test_counts_what_its_state_names(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are made as rarely as a state is large: a stage that counts less than it names makes
    an epoch quadratic."""
    state_of = HoldingTransform.state

    def checked(node: HoldingTransform, held: Any = ()) -> Any:
        names = len(node._held())
        assert names <= node._held_count() + 1, f"{type(node).__name__} names {names} rows"
        return state_of(node, held)

    monkeypatch.setattr(HoldingTransform, "state", checked)
    whole_and_states(program.pipeline(How(2), folder))
