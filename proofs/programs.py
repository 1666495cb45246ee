"""Random programs of all operations, played on a stage with the reference beside it.

A failure is printed as a program that can be pasted into a test as it is::

    from proofs.programs import Program

    state = Program()
    state.start(kind="fifo", stage="asyncio", capacity=1, keep=0)
    call_0 = state.dequeue(waker=0)
    state.enqueue_nowait(runs=False)
    state.cancel(call=call_0, runs=True)
    state.teardown()

Every step takes ``runs``: whether those who were woken may run before the next step. Steps between
which nobody runs happen in one tick, in the middle of the hand-over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar
from zlib import crc32

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from aioqueue.system.locks import COMPILED
from aioqueue.telemetry.metrics.queue_samples import QueuePart
from proofs.codec import KINDS, MAX_BYTES, Codec, weight_of
from proofs.effort import IS_LONG
from proofs.model import Call, Outcome, Reference, Rules, follow
from proofs.stage import LANES, Stage, outcome_of
from tests.kit.invariants import violations
from tests.kit.worlds import core_of

__all__ = ("Program", "programs_of")

MOST_CALLS = 14
"""Of one program, so that which steps are possible does not depend on what has ended."""
MOST_AT_ONCE = 4
"""Steps that may go unanswered: with each, the orders in which callers may run on multiply."""

WAITS_ONLY = ("wait_closed", "join")
"""Methods that move nothing."""

LANE_NUMBERS = st.integers(0, 2)
SMALL = st.integers(0, 4)
CAPACITIES = st.sampled_from([1, 2, 3, None])
KEPT = st.integers(0, 2)
INSIDE = st.integers(0, 3)
RUNS = st.sampled_from([True, False])
NO_OR_YES = st.booleans()
TIMEOUTS = st.sampled_from([None, None, 0, 3])


class Program(RuleBasedStateMachine):
    """One queue of one kind, on one stage."""

    played: ClassVar[int] = 0
    calls = Bundle("call")

    @initialize(
        kind=st.sampled_from(KINDS),
        stage=st.sampled_from(sorted(LANES)),
        capacity=CAPACITIES,
        keep=KEPT,
        inside=INSIDE,
        in_turn=NO_OR_YES,
    )
    def start(
        self,
        kind: str,
        stage: str,
        capacity: int | None,
        keep: int = 0,
        inside: int = 0,
        in_turn: bool = False,
    ) -> None:
        """Make the queue; only a shuffle queue has anything to keep, less than its capacity."""
        Program.played += 1
        self.kind = kind
        self.stage_name = stage
        self.codec = Codec(self.kind)
        kind = self.kind.removeprefix("large-")
        if kind != "shuffle":
            keep = 0
        elif capacity is not None:
            keep = min(keep, capacity - 1)
        max_bytes = MAX_BYTES.get(kind)
        weight = partial(weight_of, kind)
        kind = kind.removeprefix("weighty-")
        if kind in ("large", "structured", "objects", "padding", "weighty"):
            kind = "fifo"
        in_turn = in_turn and not COMPILED  # whose methods cannot be replaced
        self.stage = Stage(self.stage_name, in_turn=in_turn)
        self.interrupted = False
        self.queue = self.codec.queue(capacity, keep)
        self.rules_of_it = Rules(kind, capacity, keep, max_bytes, weight, in_turn)
        self.states = [Reference(self.rules_of_it)]
        self.began: list[Call] = []
        self.next_row = 0
        self.unanswered = 0
        self.failed = False
        self.put_at_once = self.taken_at_once = 0  # rows, by calls that do not wait
        self.outs: dict[int, Any] = {}  # arrays that calls were given to write to, by call
        for _ in range(min(inside, capacity or inside)):
            self.enqueue_nowait()

    # Calls that may have to wait.

    @precondition(lambda self: self.may_begin())
    @rule(target=calls, waker=LANE_NUMBERS, timeout=TIMEOUTS, runs=RUNS)
    def enqueue(self, waker: int, timeout: float | None = None, runs: bool = True) -> int:
        (row,) = self._new_rows(1)
        return self._begin("enqueue", waker, timeout, runs, self.codec.element(row), rows=(row,))

    @precondition(lambda self: self.may_begin())
    @rule(
        target=calls,
        waker=LANE_NUMBERS,
        n=SMALL,
        timeout=TIMEOUTS,
        runs=RUNS,
    )
    def enqueue_many(
        self, waker: int, n: int, timeout: float | None = None, runs: bool = True
    ) -> int:
        rows = self._new_rows(n)
        batch = self.codec.batch(rows)
        return self._begin("enqueue_many", waker, timeout, runs, batch, rows=rows, n=n)

    @precondition(lambda self: self.may_begin())
    @rule(
        target=calls,
        waker=LANE_NUMBERS,
        timeout=TIMEOUTS,
        iterates=NO_OR_YES,
        runs=RUNS,
    )
    def dequeue(
        self,
        waker: int,
        timeout: float | None = None,
        iterates: bool = False,
        runs: bool = True,
    ) -> int:
        if iterates:
            return self._begin("dequeue", waker, None, runs, through="next")
        return self._begin("dequeue", waker, timeout, runs)

    @precondition(lambda self: self.may_begin())
    @rule(
        target=calls,
        waker=LANE_NUMBERS,
        n=SMALL,
        timeout=TIMEOUTS,
        iterates=NO_OR_YES,
        out=NO_OR_YES,
        runs=RUNS,
    )
    def dequeue_many(
        self,
        waker: int,
        n: int,
        timeout: float | None = None,
        iterates: bool = False,
        out: bool = False,
        runs: bool = True,
    ) -> int:
        n = self._possible(n)
        if iterates and n:
            return self._begin("dequeue_many", waker, None, runs, n=n, through="whole batches")
        arrays = self.codec.out(n) if out else None
        self.outs[len(self.began)] = arrays
        return self._begin("dequeue_many", waker, timeout, runs, n, n=n, out=arrays)

    @precondition(lambda self: self.may_begin())
    @rule(
        target=calls,
        waker=LANE_NUMBERS,
        n=SMALL,
        max_wait=st.sampled_from([None, 0, 2]),
        timeout=TIMEOUTS,
        iterates=NO_OR_YES,
        runs=RUNS,
    )
    def dequeue_up_to(
        self,
        waker: int,
        n: int,
        max_wait: float | None = None,
        timeout: float | None = None,
        iterates: bool = False,
        runs: bool = True,
    ) -> int:
        n = self._possible(n)
        if iterates and n:
            return self._begin("dequeue_up_to", waker, None, runs, n=n, through="batches")
        return self._begin(
            "dequeue_up_to", waker, timeout, runs, n, max_wait, n=n, max_wait=max_wait
        )

    @precondition(lambda self: self.may_begin())
    @rule(target=calls, waker=LANE_NUMBERS, timeout=st.sampled_from([None, 3]), runs=RUNS)
    def wait_closed(self, waker: int, timeout: float | None = None, runs: bool = True) -> int:
        return self._begin("wait_closed", waker, timeout, runs)

    @precondition(lambda self: self.may_begin())
    @rule(target=calls, waker=LANE_NUMBERS, timeout=st.sampled_from([None, 3]), runs=RUNS)
    def join(self, waker: int, timeout: float | None = None, runs: bool = True) -> int:
        return self._begin("join", waker, timeout, runs)

    # What happens to them.

    @rule(call=calls, runs=RUNS)
    def cancel(self, call: int, runs: bool = True) -> None:
        """Cancel a task; a thread cannot be."""
        made = self.began[call]
        if made.waker.startswith("loop"):
            self.stage.cancel(made)
            for state in self.states:
                state.cancel(made)
            self._after(runs)

    @precondition(lambda self: self.may_begin())
    @rule(
        target=calls,
        method=st.sampled_from(
            ["enqueue", "enqueue_many", "dequeue", "dequeue_many", "dequeue_up_to", "wait_closed"]
        ),
        waker=LANE_NUMBERS,
        n=SMALL,
        runs=RUNS,
    )
    def cancel_after_the_first_step(
        self, method: str, waker: int, n: int, runs: bool = True
    ) -> int:
        """Begin a call that is cancelled while it stands by, waits, or lets others run."""
        self.interrupted = True
        try:
            begin = getattr(self, method)
            options = {"n": n} if method[-1] in "yo" and "_" in method else {}
            number: int = begin(waker=waker, runs=runs, **options)
            return number
        finally:
            self.interrupted = False

    @rule(place=SMALL, puts=NO_OR_YES, runs=RUNS)
    def cancel_during_transfer(self, place: int, puts: bool, runs: bool = True) -> None:
        """Let a task that waits have what it waits for, perhaps, and cancel it before it runs.

        Args:
            place: which one, of those that wait to put in or to take out; one more of them begins
                before, and perhaps has to wait.
        """
        if self.may_begin():
            begin = self.enqueue if puts else self.dequeue
            begin(waker=place)
        waiting = self._waiting(puts)
        if waiting:
            if puts:
                self.dequeue_nowait(runs=False)
            else:
                self.enqueue_nowait(runs=False)
            self.cancel(waiting[place % len(waiting)].number, runs)

    @rule(seconds=st.sampled_from([1, 2, 3]), runs=RUNS)
    def advance(self, seconds: int, runs: bool = True) -> None:
        """Let time pass."""
        self._settle()
        self.stage.clock.advance(seconds)
        for state in self.states:
            state.now = self.stage.clock.now
        self._after(runs or "thread" in LANES[self.stage_name])

    # What does not wait.

    @rule(runs=RUNS)
    def enqueue_nowait(self, runs: bool = True) -> None:
        (row,) = self._new_rows(1)
        call = partial(self.queue.enqueue_nowait, self.codec.element(row))
        seen = self.stage.here(outcome_of, call)
        if seen == ("returned", None):
            seen = ("returned", ())
            self.put_at_once += 1
        self._follow_now(seen, "QueueFull", "full", lambda state: state.enqueue_nowait(row))
        self._after(runs)

    @rule(runs=RUNS)
    def dequeue_nowait(self, runs: bool = True) -> None:
        seen = self.stage.here(outcome_of, self.queue.dequeue_nowait)
        observed: tuple[int, ...] = ()
        if seen[0] == "returned":
            observed = (self.codec.row(seen[1]),)
            seen = ("returned", observed)
            self.taken_at_once += 1
        self._follow_now(seen, "QueueEmpty", "empty", lambda state: state.dequeue_nowait(observed))
        self._after(runs)

    @rule(n=SMALL, runs=RUNS)
    def task_done(self, n: int, runs: bool = True) -> None:
        """Rows are done with; mostly too many, at first."""
        seen = self.stage.here(outcome_of, partial(self.queue.task_done, n))
        if seen == ("returned", None):
            seen = ("returned", ())
        refused = "InvalidArgumentError"
        self._follow_now(seen, refused, "too many", lambda state: state.task_done(n))
        self._after(runs)

    @rule(cancel=NO_OR_YES, cause=st.sampled_from([None, "why", "because"]), runs=RUNS)
    def close(self, cancel: bool = False, cause: str | None = None, runs: bool = True) -> None:
        error = None if cause is None else ValueError(cause)
        self.stage.here(partial(self.queue.close, cancel, cause=error))
        for state in self.states:
            state.close(cancel, cause)
        self._after(runs)

    def teardown(self) -> None:
        """Let everybody run, close the queue and take out what is left: the books must balance."""
        if not hasattr(self, "stage"):
            return  # it never started, or is put away already
        try:
            if not self.failed:
                self._settle()
                self.close(cancel=True)
                while not self.failed and self.states[0].size():
                    self.dequeue_nowait()
                if not self.failed:  # a join waits for what nobody has said is done
                    self.task_done(self.states[0].unfinished())
                    self._settle()
                unfinished = [call for call in self.began if call.number not in self.outcomes]
                self._expect(not unfinished, f"never ended: {unfinished}")
        finally:
            self.queue.close(cancel_pending_enqueues=True)
            # Of a program that has failed, no join may stay behind: later tests look for waits.
            self.queue.task_done(max(0, self.queue.statistics().unfinished))
            self.stage.end()
            del self.stage

    # How it is done.

    def _waiting(self, puts: bool) -> list[Call]:
        """The tasks that have not ended, of those who put in or of those who take out."""
        return [
            call
            for call in self.began
            if call.is_put is puts
            and call.waker != "thread"
            and call.method not in WAITS_ONLY
            and call.number not in self.outcomes
        ]

    def may_begin(self) -> bool:
        return len(self.began) < MOST_CALLS

    @property
    def outcomes(self) -> dict[int, Outcome]:
        return self.stage.outcomes

    def _new_rows(self, n: int) -> tuple[int, ...]:
        start = self.next_row
        self.next_row += n
        return tuple(range(start, self.next_row))

    def _possible(self, n: int) -> int:
        """A priority queue refuses more than fit."""
        capacity = self.rules_of_it.capacity
        return min(n, capacity) if self.rules_of_it.kind == "priority" and capacity else n

    def _begin(
        self,
        method: str,
        waker_number: int,
        timeout: float | None,
        runs: bool,
        *arguments: Any,
        rows: tuple[int, ...] = (),
        n: int = 1,
        max_wait: float | None = None,
        through: str = "",
        out: Any = None,
    ) -> int:
        wakers = LANES[self.stage_name]
        waker = wakers[waker_number % len(wakers)]
        in_thread = waker == "thread"
        now = self.stage.clock.now
        call = Call(
            len(self.began),
            method,
            waker,
            rows,
            n,
            None if max_wait is None else now + max_wait,
            None if timeout is None or not in_thread else now + timeout,
            self.interrupted and not in_thread,
        )
        self.began.append(call)
        for state in self.states:
            state.new.append(call)
        make = self._made(method, in_thread, timeout, arguments, n, through, out)
        self.stage.begin(call, make)
        if call.interrupted:
            self.stage.schedule_cancel(call)
        self._after(runs or in_thread)  # a thread runs at once, so the others may, too
        return call.number

    def _made(
        self,
        method: str,
        in_thread: bool,
        timeout: float | None,
        arguments: tuple[Any, ...],
        n: int,
        through: str,
        out: Any,
    ) -> Callable[[], Any]:
        face = self.queue.sync if in_thread else self.queue
        if not through:
            options: dict[str, Any] = {} if out is None else {"out": out}
            if in_thread and timeout is not None:
                options["timeout"] = timeout
            return partial(getattr(face, method), *arguments, **options)
        step = next if in_thread else anext
        if through == "next":
            return partial(step, iter(face) if in_thread else aiter(face))
        batches = face.batches(n, drop_remainder=through == "whole batches")
        return partial(step, batches)

    def _after(self, runs: bool) -> None:
        """A step has been made: let everybody run, unless the next one is to come before that."""
        self.unanswered += 1
        if "thread" not in LANES[self.stage_name]:  # else who was woken may be running
            self._check_what_is_out()
        if runs or self.unanswered >= MOST_AT_ONCE:
            self._settle()

    def _check_what_is_out(self) -> None:
        """What a monitor sees in between: what was granted to callers that have not run on is
        held, and what is out is what callers have got."""
        numbers = QueuePart(core_of(self.queue), 0.0).numbers(0.0)
        entered = sum(
            len(call.rows)
            for call in self.began
            if call.is_put and self.outcomes.get(call.number, ("",))[0] == "returned"
        )
        out = sum(
            len(self._decoded(call, self.outcomes[call.number])[1])
            for call in self.began
            if call.number in self.outcomes and not call.is_put
            if self.outcomes[call.number][0] == "returned"
        )
        is_so = (
            min(numbers.size, numbers.held) >= 0
            and numbers.enqueued == numbers.size + numbers.held + numbers.dequeued
            and numbers.enqueued >= entered + self.put_at_once
            and numbers.dequeued == out + self.taken_at_once
        )
        self._expect(is_so, f"{entered} + {self.put_at_once} in, {out} out, and told: {numbers}")

    def _settle(self) -> None:
        """Let everybody run, and compare."""
        self.unanswered = 0
        self.stage.settle(lambda: self._counts(self.queue.statistics()))
        broken = violations(core_of(self.queue).machine)
        self._expect(not broken, f"not so: {broken}")
        for number, arrays in self.outs.items():
            # A call that took nothing has given the arrays back: what its caller does with them
            # now changes nothing in the queue.
            if arrays is not None and self.outcomes.get(number, ("returned",))[0] != "returned":
                for column in arrays if isinstance(arrays, tuple) else (arrays,):
                    column[...] = -7 if column.dtype.names is None else (-7, -7)
        seen = {
            call.number: self._decoded(call, self.outcomes[call.number])
            for call in self.began
            if call.number in self.outcomes
        }
        observed = {
            number: outcome[1]
            for number, outcome in seen.items()
            if outcome[0] == "returned" and self.began[number].rows == ()
        }
        possible = follow(self.states)
        for state in possible:
            state.observe(observed)
        counts = self._counts(self.queue.statistics())
        fitting = [
            state for state in possible if self._shown(state) == seen and state.counts() == counts
        ]
        self._expect(
            bool(fitting),
            f"seen: {self._formatted(seen)}, {counts}\nnot one of: "
            + "\n            ".join(
                f"{self._formatted(self._shown(state))}, {state.counts()}" for state in possible[:5]
            ),
        )
        for state in fitting:
            state.returned.update(seen)
        self.states = fitting

    def _follow_now(
        self, seen: Outcome, refused: str, word: str, move: Callable[[Reference], Outcome]
    ) -> None:
        if seen[0] == "raised" and seen[1].startswith(refused):
            seen = (word,)
        outcomes = [move(state) for state in self.states]
        fitting = [
            state for state, outcome in zip(self.states, outcomes, strict=True) if outcome == seen
        ]
        self._expect(bool(fitting), f"seen: {seen}, not one of {outcomes}")
        self.states = fitting

    def _decoded(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome[0] != "returned":
            return outcome
        if call.is_put or call.method in WAITS_ONLY:
            self._expect(outcome[1] is None, f"{call.method} returned something: {outcome[1]!r}")
            return ("returned", ())
        if call.is_batch:
            return ("returned", self.codec.rows(outcome[1]))
        return ("returned", (self.codec.row(outcome[1]),))

    def _shown(self, state: Reference) -> dict[int, Outcome]:
        """How calls end by the rules; one that iterates just stops."""
        stopped = ("stopped",)
        return {
            number: stopped
            if self.outcomes.get(number) == stopped and outcome[0] == "out of range"
            else outcome
            for number, outcome in state.ended.items()
        }

    def _formatted(self, outcomes: dict[int, Outcome]) -> str:
        return ", ".join(
            f"call_{number} {self.began[number].method}: {' '.join(map(str, outcome))}"
            for number, outcome in sorted(outcomes.items())
        )

    def _expect(self, so: bool, problem: str) -> None:
        if not so:
            self.failed = True
            raise AssertionError(problem)

    @staticmethod
    def _counts(statistics: Any) -> tuple[int, ...]:
        return (
            statistics.size,
            statistics.enqueued,
            statistics.dequeued,
            statistics.waiting_enqueues,
            statistics.waiting_dequeues,
            statistics.granted,
            statistics.claimed,
            statistics.unfinished,
        )


def programs_of(kind: str, stage: str) -> type[Program]:
    """Programs of one kind of queue on one stage; printed, they are plain `Program`.

    Other ones for each, but the same in each run, unless they are to be played for long.
    """

    class OfOneKind(Program):
        @initialize(
            kind=st.just(kind),
            stage=st.just(stage),
            capacity=CAPACITIES,
            keep=KEPT,
            inside=INSIDE,
            in_turn=NO_OR_YES,
        )
        def start(
            self,
            kind: str,
            stage: str,
            capacity: int | None,
            keep: int = 0,
            inside: int = 0,
            in_turn: bool = False,
        ) -> None:
            super().start(kind, stage, capacity, keep, inside, in_turn)

    OfOneKind.__name__ = Program.__name__
    return seed(crc32(f"{kind} {stage}".encode()))(OfOneKind) if not IS_LONG else OfOneKind
