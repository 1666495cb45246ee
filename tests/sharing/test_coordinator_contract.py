"""The suite's tests of coordinators, on handles of one that another process owns.

Left out is what looks into a coordinator in memory.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.bodies import Body, bodies_of
from tests.kit.coordinators import AwaitedCoordinator, threads
from tests.kit.owners import PROCESS_WORLDS, InAnotherProcess, MadeElsewhere, ThreadProcessWorld

pytest.importorskip("trio", reason="trio is not installed")

from tests.coordination import (  # they import trio
    test_blocking_loopers,
    test_cancellations_left_over,
    test_cancellations_native,
    test_cancellations_once,
    test_cancellations_requests,
    test_classify_interrupt_groups,
    test_classify_outcomes,
    test_coordinator,
    test_coordinator_core_block,
    test_coordinator_core_corners,
    test_coordinator_core_draining,
    test_coordinator_core_failures,
    test_coordinator_core_interrupted_joins,
    test_coordinator_core_join,
    test_coordinator_core_leaving,
    test_coordinator_core_places_of_blocks,
    test_coordinator_core_random_stops,
    test_coordinator_core_register,
    test_coordinator_core_stop,
    test_coordinator_core_wakeups,
    test_misuse,
    test_restarts,
    test_runner_metrics,
    test_runs_call_when_over,
    test_runs_latecomers,
    test_runs_of_queue_runners,
    test_runs_without_queue,
    test_shutdown_exits,
    test_shutdown_slow_stops,
    test_tasks_turns,
    test_watchdog,
)

MODULES = (
    test_blocking_loopers,
    test_cancellations_left_over,
    test_cancellations_native,
    test_cancellations_once,
    test_cancellations_requests,
    test_classify_interrupt_groups,
    test_classify_outcomes,
    test_coordinator,
    test_coordinator_core_block,
    test_coordinator_core_corners,
    test_coordinator_core_draining,
    test_coordinator_core_failures,
    test_coordinator_core_interrupted_joins,
    test_coordinator_core_join,
    test_coordinator_core_leaving,
    test_coordinator_core_places_of_blocks,
    test_coordinator_core_random_stops,
    test_coordinator_core_register,
    test_coordinator_core_stop,
    test_coordinator_core_wakeups,
    test_misuse,
    test_restarts,
    test_runner_metrics,
    test_runs_call_when_over,
    test_runs_latecomers,
    test_runs_of_queue_runners,
    test_runs_without_queue,
    test_shutdown_exits,
    test_shutdown_slow_stops,
    test_tasks_turns,
    test_watchdog,
)
LEFT_OUT: dict[str, set[str]] = {
    "the text of a handle also says who shares it: see `test_coordinator.py`": {"test_repr"},
    "a join asks the other processes first, so it always has to wait": {
        "test_blocking_in_a_running_event_loop_where_nothing_is_to_wait_for",
    },
    "a handle has threads of its own, which also wait for registered threads": {
        "test_it_starts_no_thread",
        "test_daemons_get_a_moment_to_end",
    },
}
"""By the reason why."""


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, with the functions inside of it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from names_in(one)


def has_coordinator(body: Body) -> bool:
    return "make" in body.parameters or "Coordinator" in names_in(body.function.__code__)


BODIES = [
    parameter
    for module in MODULES
    for parameter in bodies_of(
        module,
        set().union(*LEFT_OUT.values()),
        ["make", "thread", "monkeypatch", "caplog", "in_loop"],
        in_worlds_only=False,
    )
    if has_coordinator(parameter.values[0])
]


def cases() -> Iterator[Any]:
    """Each body in each world that it fits; once, if it brings its own."""
    turns = itertools.count()
    for parameter in BODIES:
        body: Body = parameter.values[0]
        worlds = [world for world in PROCESS_WORLDS if body.fits(world)]
        for world in worlds if body.is_in_world else worlds[:1]:
            is_usual = next(turns) % len(PROCESS_WORLDS) == 0
            marks = [*parameter.marks, *([] if is_usual else [pytest.mark.long])]
            yield pytest.param(world, body, id=f"{parameter.id}-{world.name}", marks=marks)


def test_what_is_left_out_is_there() -> None:
    places = [
        place
        for module in MODULES
        for place in (module, *(case for _, case in inspect.getmembers(module, inspect.isclass)))
    ]
    names = {name for place in places for name in vars(place)}
    assert set().union(*LEFT_OUT.values()) <= names


@pytest.mark.slow(but="test_without_workers")
@pytest.mark.parametrize(("process_world", "body"), list(cases()), indirect=["process_world"])
def test_is_that_of_one_process(
    process_world: InAnotherProcess,
    body: Body,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for module, face in ((aioqueue, "aio"), (sync, "sync")):
        made = MadeElsewhere(process_world.owner, "Coordinator", face)
        monkeypatch.setattr(module, "Coordinator", made)
    is_blocking = isinstance(process_world, ThreadProcessWorld)
    make = AwaitedCoordinator if is_blocking else aioqueue.Coordinator
    with threads() as thread:
        body.run(
            process_world,
            make=make,
            thread=thread,
            in_loop=process_world.run,
            monkeypatch=monkeypatch,
            caplog=caplog,
        )
