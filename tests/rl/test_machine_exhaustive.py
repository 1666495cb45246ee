"""The machine of a `RolloutQueue` in every state that small worlds can bring it to.

See `proofs.rollouts`, which explores them by hand::

    python -m proofs.rollouts "strict B2"
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from aioqueue.rl.machine import RolloutMachine
from proofs.rollouts.exploring import explore
from proofs.rollouts.mistakes import FOUND_BY, MISTAKES, PROTOCOL_MISTAKES
from proofs.rollouts.process_world import ProcessWorld
from proofs.rollouts.settings import SETTINGS
from proofs.rollouts.world import Setting

QUICK = frozenset(
    (
        "strict B2 S0 refuse",
        "oldest drop again",
        "ready wait second B2",
        "oldest G2 drain to safe points",
        "strict second B2 S0 shorten",
        "ready G2 enter, drop",
        "process second, drain ended",
    )
)
"""Worlds with a few hundred states, for every run of the suite."""


def marks_of(number: int, setting: Setting) -> list[pytest.MarkDecorator]:
    """The command above explores all of them in some minutes; ``--run-slow`` does, too."""
    if setting.name in QUICK:
        return []
    return [pytest.mark.slow] if number % 12 == 0 else [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(one, id=one.name, marks=marks_of(number, one))
        for number, one in enumerate(SETTINGS)
    ],
)
def test_no_order_of_events_breaks_a_guarantee(setting: Setting) -> None:
    result = explore(setting)
    assert not result.violation
    assert result.states > 30


@pytest.mark.slow(every=24)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: type[RolloutMachine]) -> None:
    name = FOUND_BY[mistake.__name__]
    (setting,) = [one for one in SETTINGS if one.name == name]
    violation = explore(replace(setting, machine=mistake), max_states=60_000).violation
    assert violation
    assert violation != "too many states"


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("mistake", PROTOCOL_MISTAKES)
def test_each_mistake_of_the_protocol_with_a_process_is_found(mistake: type[ProcessWorld]) -> None:
    name = FOUND_BY[mistake.__name__]
    (setting,) = [one for one in SETTINGS if one.name == name]
    violation = explore(setting, kind=mistake, max_states=60_000).violation
    assert violation
    assert violation != "too many states"
