"""A world whose calls run in a child process, with the gate there (``where="process"``).

The machine grants all calls that the slots allow. The child starts them in their turn, without a
question, as many at once as ``max_in_flight`` allows. Messages and reports are on their way for any
time, each in order. The process may die at any moment, with the reports that it has not sent, and
another one starts then.

This is the protocol of `aioqueue.rl.processes`, `aioqueue.rl.child` and the gates of
`aioqueue.rl.core`, step by step. A method here is named after what it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from aioqueue.rl.machine import Effects, RolloutCall
from proofs.rollouts.world import Event, Setting, ViolationError, World

_OF_CALLS: Final = frozenset(("enter", "finish", "fail", "expire", "freeze", "park"))
"""Events of a `World` whose calls run here."""


class ChildProcess:
    """The child: `ChildCore` and its host.

    Attributes:
        limit: how many calls have a place.
        version: that of the weights, as it knows.
        is_open: whether the gate is.
        is_over: whether the run was stopped.
        inbox: messages on their way to it.
        outbox: reports on their way from it.
        waiting: calls without a place.
        placed: calls that have a place, and have not begun.
        running: calls that have begun.
        begun: all that have begun and not ended for the parent, as `Starts` knows.
        cancelled: what is not wanted any more.
    """

    def __init__(self, limit: float, version: int, *, is_open: bool) -> None:
        self.limit = limit
        self.version = version
        self.is_open = is_open
        self.is_over = False
        self.inbox: list[tuple[Any, ...]] = []
        self.outbox: list[tuple[Any, ...]] = []
        self.waiting: list[RolloutCall] = []
        self.placed: list[RolloutCall] = []
        self.running: list[RolloutCall] = []
        self.begun: list[RolloutCall] = []
        self.cancelled: list[RolloutCall] = []

    def read(self) -> None:
        name, *args = self.inbox.pop(0)
        getattr(self, f"_do_{name}")(*args)
        self.start_next()

    def _do_start(self, call: RolloutCall) -> None:
        if self.is_open:
            self.waiting.append(call)
        else:
            self.outbox.append(("turned", call))

    def _do_cancel(self, call: RolloutCall) -> None:
        if call in self.waiting:
            self.waiting.remove(call)
            self.outbox.append(("turned", call))
        elif call in self.placed or call in self.running:
            self.cancelled.append(call)

    def _do_close(self, publication: int) -> None:
        self.close_gate()
        self.outbox.append(("closed", publication))

    def _do_stop(self) -> None:
        self.is_over = True
        self.close_gate()

    def _do_open(self, version: int) -> None:
        self.version = version
        self.is_open = not self.is_over

    def close_gate(self) -> None:
        self.is_open = False
        self.outbox += [("turned", call) for call in self.waiting]
        self.waiting = []

    def start_next(self) -> None:
        self.waiting.sort(key=lambda call: (not call.group.is_evaluation, *_name(call)))
        while self.is_open and self.waiting and len(self.placed) + len(self.running) < self.limit:
            self.placed.append(self.waiting.pop(0))

    def enter(self, number: int) -> bool:
        """Let the task of a call begin; return whether the user's function has begun."""
        call = self.placed.pop(number)
        may_begin = self.is_open and call not in self.cancelled
        if may_begin:
            self.running.append(call)
            self.begun.append(call)
            self.outbox.append(("entered", call, self.version))
        else:
            self.outbox.append(("turned", call))
            self.start_next()
        return may_begin

    def end(self, number: int, how: str) -> None:
        call = self.running.pop(number)
        self.outbox.append(("ended" if call in self.cancelled else how, call))
        self.start_next()

    def key(self) -> Any:
        def names(calls: Sequence[RolloutCall]) -> Any:
            return tuple(map(_name, calls))

        return (
            *(self.is_open, self.is_over, self.version),
            *(_named(self.inbox), _named(self.outbox), names(self.waiting)),
            *(names(self.placed), names(self.running)),
            tuple(sorted(map(_name, self.begun))),
            tuple(sorted(map(_name, self.cancelled))),
        )


def _name(call: RolloutCall) -> tuple[Any, ...]:
    """What tells a call, and whether it is wanted."""
    group = call.group
    return (group.ordinal, group.is_evaluation, call.index, call.attempt, call.state.value)


def _named(messages: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(
        tuple(_name(one) if isinstance(one, RolloutCall) else one for one in message)
        for message in messages
    )


class ProcessWorld(World):
    """See the module."""

    child_type: type[ChildProcess] = ChildProcess

    def __init__(self, setting: Setting) -> None:
        self.child: ChildProcess | None = None
        self.has_died = False
        """Whether the last reports of a dead process are still on their way."""
        self.unsent: list[RolloutCall] = []
        """Calls that were granted while no process is ready."""
        self.is_revoking = False
        self.publication = 0
        self.turned_away: list[RolloutCall] = []
        super().__init__(setting)

    def key(self) -> Any:
        return (
            super().key(),
            *(None if self.child is None else self.child.key(), self.has_died),
            *(tuple(map(_name, self.unsent)), tuple(map(_name, self.turned_away))),
            *(self.is_revoking, self._is_answered()),
        )

    def _is_answered(self) -> tuple[bool, ...]:
        """Of each ``closed`` and ``close`` on its way, whether it is that of this publication."""
        if self.child is None:
            return ()
        messages = (*self.child.inbox, *self.child.outbox)
        return tuple(
            one[1] == self.publication for one in messages if one[0] in ("close", "closed")
        )

    # ---- effects -----------------------------------------------------------------------------

    def do(self, effects: Effects) -> None:
        super().do(effects)
        for call in effects.cancels:
            self._cancel(call)

    def _start(self, call: RolloutCall) -> None:
        if self.machine.is_paused or self.machine.is_stopped:
            raise ViolationError("a call starts while weights are published, or after the stop")
        self.calls.append(call)
        if self.child is None or self.has_died:
            self.unsent.append(call)
        else:
            self.child.inbox.append(("start", call))

    def _cancel(self, call: RolloutCall) -> None:
        if call in self.unsent:
            if self.machine.is_stopped:
                self.unsent.remove(call)
                self._end(call)
                self.do(self.machine.turned_away(call))
        elif self.child is not None and not self.has_died:
            if self.machine.is_stopped and not self.child.is_over:
                self.child.inbox.append(("stop",))
            self.child.inbox.append(("cancel", call))

    def _end(self, call: RolloutCall) -> None:
        self.calls.remove(call)
        if self.child is not None and call in self.child.begun:
            self.child.begun.remove(call)
        if self.child is not None and call in self.child.cancelled:
            self.child.cancelled.remove(call)

    # ---- events ------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        events = [event for event in super().events() if event[0] not in _OF_CALLS]
        child = self.child
        if child is None:
            if self.unsent:
                events.append(("come_up",))
            return events
        if child.outbox:
            events.append(("report",))
        if self.has_died:
            return events if child.outbox else [*events, ("eof",)]
        if child.inbox:
            events.append(("read",))
        events += [("begin", number) for number in range(len(child.placed))]
        for number in range(len(child.running)):
            events.append(("end", number, "finished"))
            if self.may("fail"):
                events.append(("end", number, "failed"))
        if self.may("die"):
            events += [("die", left) for left in range(len(child.outbox) + 1)]
        if self.trainer == "closing" and self.may("abandon"):
            events.append(("abandon",))
        return events

    def needs_nothing(self) -> bool:
        child = self.child
        is_quiet = child is None or not (child.inbox or child.outbox or child.placed)
        return is_quiet and not self.has_died and super().needs_nothing()

    def _on_come_up(self) -> None:
        """A process is ready, and reads what was granted."""
        machine = self.machine
        is_open = not (self.is_revoking or machine.is_paused)
        self.child = self.child_type(machine.limit, machine.version, is_open=is_open)
        self.child.inbox = [("start", call) for call in self.unsent]
        for call in self.unsent:
            if not call.is_current:
                self.child.inbox.append(("cancel", call))
        self.unsent = []

    def _on_read(self) -> None:
        assert self.child is not None
        self.child.read()

    def _on_begin(self, number: int) -> None:
        assert self.child is not None
        if self.child.enter(number) and self.trainer in ("publishing", "draining"):
            raise ViolationError("a call begins while weights are published")
        if len(self.child.running) > self.machine.limit:
            raise ViolationError("more calls run than max_in_flight")

    def _on_end(self, number: int, how: str) -> None:
        assert self.child is not None
        if how == "failed":
            self.faults["fail"] -= 1
        self.child.end(number, how)

    def _on_die(self, left: int) -> None:
        """The process dies, and the last of its reports with it."""
        assert self.child is not None
        del self.child.outbox[left:]
        self.child.inbox = []
        self.has_died = True

    def _on_eof(self) -> None:
        """All reports of a process that has died were read: `ProcessCalls._handle_end`."""
        assert self.child is not None
        begun = list(self.child.begun)
        lost = [call for call in self.calls if call not in self.unsent]
        self.has_died = False
        self.child = None
        if self.is_revoking:
            self._closed()
        for call in lost:
            if call in self.turned_away:
                continue
            self._end(call)
            if call in begun:
                if call.is_current and not self.machine.is_stopped:
                    self._fails(call)
                else:
                    self.do(self.machine.call_ended(call))
            else:
                self._turn_away(call)

    def _on_report(self) -> None:
        assert self.child is not None
        name, *args = self.child.outbox.pop(0)
        getattr(self, f"_reported_{name}")(*args)

    def _reported_closed(self, publication: int) -> None:
        if self.is_revoking and publication == self.publication:
            self._closed()

    def _reported_entered(self, call: RolloutCall, version: int) -> None:
        if self.machine.enter(call) and call.version != version:
            raise ViolationError(f"a rollout of version {version} counts as of {call.version}")

    def _reported_finished(self, call: RolloutCall) -> None:
        self._end(call)
        self.do(self.machine.finished(call))

    def _reported_failed(self, call: RolloutCall) -> None:
        self._end(call)
        self._fails(call)

    def _reported_ended(self, call: RolloutCall) -> None:
        self._end(call)
        self.do(self.machine.call_ended(call))

    def _reported_turned(self, call: RolloutCall) -> None:
        self._end(call)
        self._turn_away(call)

    def _turn_away(self, call: RolloutCall) -> None:
        if self.is_revoking:
            # For the machine, the publication has not begun: it would start the call at once.
            self.calls.append(call)
            self.turned_away.append(call)
        else:
            self.do(self.machine.turned_away(call))

    def _fails(self, call: RolloutCall) -> None:
        is_last = call.attempt >= self.setting.tries
        retry: Literal["no", "now"] = "no" if is_last else "now"
        self.vain += is_last and call.is_current
        self.do(self.machine.failed(call, ValueError("rollout"), retry))

    # ---- publications ------------------------------------------------------------------------

    def _begin_publication(self) -> None:
        """`RolloutCore.pause`: the gate of the machine closes after that of the child."""
        self.is_revoking = True
        self.publication += 1
        self.trainer = "closing"
        if self.child is not None and not self.has_died:
            self.child.inbox.append(("close", self.publication))
        elif self.child is None:
            self.turned_away += self.unsent
            self.unsent = []
            self._closed()

    def _closed(self) -> None:
        self.is_revoking = False
        drain = self.setting.drain
        self.trainer = "publishing" if drain == "no" else "draining"
        self.do(self.machine.pause(drain))  # type: ignore[arg-type]
        self._report_turned_away()

    def _report_turned_away(self) -> None:
        calls, self.turned_away = self.turned_away, []
        for call in calls:
            self._end(call)
            self.do(self.machine.turned_away(call))

    def _end_publication(self, version: int | None) -> None:
        self.publication += 1
        self.trainer = "idle"
        effects = self.machine.resume(version)
        self._reopen()
        self.do(effects)

    def _on_abandon(self) -> None:
        """The wait for the child is cancelled: the publication ends before it has begun."""
        self.is_revoking = False
        self.publication += 1
        self.trainer = "got"
        self._reopen()
        self._report_turned_away()

    def _reopen(self) -> None:
        if self.child is not None and not self.has_died:
            self.child.inbox.append(("open", self.machine.version))
