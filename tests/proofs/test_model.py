"""Random programs of all operations end as the rules say, on every stage."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="programs are made by hypothesis, which is not installed")

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import aioqueue
from aioqueue.core.attempts import Attempt, Take
from aioqueue.core.machine import Machine
from proofs.codec import KINDS
from proofs.effort import EFFORT
from proofs.model import Call, Reference, Rules, follow
from proofs.programs import Program, programs_of
from proofs.stage import LANES
from tests.kit.worlds import UvloopWorld

PROGRAMS = {"asyncio": 14, "uvloop": 6, "threads": 8, "mixed": 5}
"""How many programs of each kind of queue are played on each stage."""


def profile(programs: int) -> settings:
    return settings(
        max_examples=programs,
        stateful_step_count=25,
        deadline=None,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow(but="large-threads")
@pytest.mark.parametrize("stage", LANES)
@pytest.mark.parametrize("kind", KINDS)
def test_programs(kind: str, stage: str) -> None:
    if stage == "uvloop" and UvloopWorld.missing():
        pytest.skip(UvloopWorld.missing())
    before = Program.played
    run_state_machine_as_test(programs_of(kind, stage), settings=profile(PROGRAMS[stage] * EFFORT))
    print(f"\n{kind} on {stage}: {Program.played - before} programs")


_remove_attempt = Machine._remove_attempt


def _lose_what_was_held(machine: Machine, attempt: Attempt) -> None:
    """Replaces `Machine._remove_attempt`: a withdrawn dequeue keeps its rows, which are lost."""
    _remove_attempt(machine, attempt)
    if isinstance(attempt, Take):
        attempt.held.clear()


@pytest.mark.skipif(
    aioqueue.__compiled__, reason="what is compiled cannot be broken from the outside"
)
class TestAFailure:
    """It is printed as a program that fails for the same reason, wherever it is pasted."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("stage", "move", "broken"),
        [
            ("asyncio", "_remove_attempt", _lose_what_was_held),
            ("threads", "_may_proceed", lambda *_: False),
        ],
    )
    def test_is_a_program(
        self,
        stage: str,
        move: str,
        broken: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        with monkeypatch.context() as context:
            context.setattr(Machine, move, broken)
            with pytest.raises(AssertionError) as caught:
                run_state_machine_as_test(programs_of("fifo", stage), settings=profile(300))
            program = printed_program(caught.value, capsys.readouterr().out)
            assert len(program.splitlines()) < 10, "not shrunk"
            with pytest.raises(AssertionError, match=r"not one of|not so"):
                paste(program)
        paste(program)


def printed_program(failure: BaseException, output: str) -> str:
    """What hypothesis shows of a failure."""
    shown = "\n".join([*getattr(failure, "__notes__", []), output])
    (program,) = re.findall(
        r"^state = Program\(\)$.*?^state\.teardown\(\)$", shown, re.MULTILINE | re.DOTALL
    )
    return str(program)


def paste(program: str) -> None:
    """Run a program; put its stage away, which one that fails does not come to."""
    names: dict[str, Any] = {"Program": Program}
    try:
        exec(program, names)
    finally:
        names["state"].teardown()


class TestTheReference:
    """It is no better than its input, so the simplest of its answers are checked by hand."""

    def test_a_cancelled_transfer_serves_the_next_caller(self) -> None:
        state = Reference(Rules("fifo", 3))
        first, second = Call(0, "dequeue", "loop"), Call(1, "dequeue", "loop")
        state.begin(first)
        state.begin(second)
        assert state.enqueue_nowait(7) == ("returned", ())
        state.cancel(first)
        (after,) = follow([state])
        assert after.ended == {0: ("cancelled", 0), 1: ("returned", (7,))}

    def test_a_cancelled_enqueue_has_put_nothing_in(self) -> None:
        state = Reference(Rules("fifo", 1), inside=[0], arrival={0: 0})
        call = Call(0, "enqueue", "loop", rows=(1,))
        state.begin(call)
        assert state.dequeue_nowait(()) == ("returned", (0,))
        assert state.enqueue_nowait(2) == ("full",)  # the place is given away already
        state.cancel(call)
        (after,) = follow([state])
        assert after.ended == {0: ("cancelled", 0)}
        assert after.inside == []

    def test_a_batch_that_waits_takes_up_no_room(self) -> None:
        state = Reference(Rules("fifo", 1))
        state.begin(Call(0, "dequeue_many", "thread", n=3))
        for row in (0, 1, 2):
            assert state.enqueue_nowait(row) == ("returned", ())
        assert state.ended == {0: ("returned", (0, 1, 2))}

    def test_of_a_priority_queue_it_does(self) -> None:
        state = Reference(Rules("priority", 2))
        state.begin(Call(0, "dequeue_many", "thread", n=2))
        assert state.enqueue_nowait(1) == ("returned", ())
        assert state.size() == 1
        assert state.enqueue_nowait(3) == ("returned", ())
        assert state.ended == {0: ("returned", (3, 1))}  # whose priorities are 1 and 2

    def test_a_batch_fails_when_the_last_enqueue_is_in(self) -> None:
        state = Reference(Rules("fifo", 1), inside=[0], arrival={0: 0})
        state.begin(Call(0, "enqueue", "thread", rows=(1,)))
        state.close(False, "why")
        assert state.phase == "closing"
        assert state.dequeue_nowait(()) == ("returned", (0,))
        state.begin(Call(1, "dequeue_many", "thread", n=2))
        assert state.ended == {0: ("returned", ()), 1: ("out of range", 2, 1, "why")}

    def test_what_was_drawn_has_to_have_been_there(self) -> None:
        state = Reference(Rules("shuffle", 3))
        state.begin(Call(0, "dequeue", "thread"))
        for row in (0, 1):
            state.enqueue_nowait(row)
        other = state.copy()
        state.observe({0: (0,)})
        assert (state.ended, state.inside) == ({0: ("returned", (0,))}, [1])
        other.observe({0: (1,)})  # which came after the draw
        assert other.ended != {0: ("returned", (1,))}
