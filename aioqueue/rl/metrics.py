"""What monitors see of a generation: a stage, whose items are rollouts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from aioqueue.core.meters import Durations, Histogram, Tracer
from aioqueue.errors import counted
from aioqueue.rl.machine import GroupState
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry import EndingPart, GenerationNumbers, StageNumbers

if TYPE_CHECKING:
    from aioqueue.rl.core import RolloutCore
    from aioqueue.rl.machine import RolloutCall


class GenerationStage(EndingPart):
    """The rollouts of one queue, for monitors.

    A place among those in flight stands for a worker. It is busy while its rollout runs, waits for
    room while no slot is free, and waits for items while prompts come.

    Args:
        core: the queue.
        where: where the rollouts run: ``"task"``, ``"thread"`` or ``"process"``.
    """

    def __init__(self, core: RolloutCore, where: str) -> None:
        self.name: str = core.name
        self.key: Hashable = ("rollouts", core.name)
        self._core = core
        self._where = where
        self._lock = threading.Lock()  # guards all below; several monitors may watch
        self._since: float | None = None
        self._alive = 0.0
        self._blocked = 0.0
        self._starved = 0.0

    @property
    def is_over(self) -> bool:
        core = self._core
        return core.over.is_open and core.host is None and not core.machine.groups

    def trace(self, tracer: Tracer | None) -> None:
        """Report no worker: rollouts are not kept one by one."""

    def queues(self) -> Iterable[Any]:
        return ()

    def sample(self, now: float) -> None:
        self._core.is_measured = True
        self._add_time(now)

    def stop_sampling(self) -> None:
        self._core.is_measured = False

    def _add_time(self, now: float) -> None:
        core, machine = self._core, self._core.machine
        with self._lock:
            before, self._since = self._since, now
            if before is None or core.over.is_open:
                return
            seconds = max(0.0, now - before)
            running = len(core.calls)
            places = running if math.isinf(machine.limit) else max(running, machine.limit)
            self._alive += seconds * places
            idle = seconds * (places - running)
            if machine.is_paused:
                return  # the gate
            if machine.is_pulling or machine.is_source_ended:
                self._starved += idle
            else:
                self._blocked += idle

    def numbers(self, now: float) -> StageNumbers:
        self._add_time(now)
        # Outside of the lock: the prompt that it names is the user's, and so is its `repr`.
        missing = missing_groups(self._core, self._core.describe_time)
        return call_with_lock(self._core._lock, self._numbers, now, missing)

    def _numbers(self, now: float, missing: str) -> StageNumbers:
        core, machine = self._core, self._core.machine
        durations = core.durations
        in_flight = len(core.calls)
        busy = durations.seconds + sum(now - began for began in core.calls.values())
        return StageNumbers(
            name=self.name,
            where=self._where,
            source=None,
            into=None,
            workers=(),
            resizable=False,
            taken=core.results + core.lost + in_flight,
            delivered=core.results,
            skipped=core.lost,
            retried=core.retried,
            in_flight=in_flight,
            in_flight_bytes=None,
            max_in_flight=None if math.isinf(machine.limit) else int(machine.limit),
            service=_histogram(durations),
            cpu_sampled=0.0,
            cpu=0.0,
            source_waits=Histogram(),
            blocked=self._blocked,
            starved=self._starved,
            seconds_window_full=0.0,
            ordered=False,
            busy=busy,
            # Calls that began before the first sample are busy for longer than it is watched.
            alive=max(self._alive, busy + self._blocked + self._starved),
            generation=self._generation(now, missing),
        )

    def _generation(self, now: float, missing: str) -> GenerationNumbers:
        core, machine, times = self._core, self._core.machine, self._core.times
        times.add_time(now, machine)
        return GenerationNumbers(
            steps=core.given_out,
            version=machine.version,
            publish_lag=machine.step - machine.version,
            groups=times.groups,
            staleness=times.sum_of_staleness,
            worst_staleness=times.worst_staleness,
            existing=len(machine.groups),
            ready=machine.census[GroupState.READY],
            slots=(
                None
                if machine.is_weighed
                else math.floor(machine.batch_size * (machine.steps_ahead + 1) + 1e-9)
            ),
            missing=missing,
            waits=_histogram(times.waits),
            waiting=sum(now - taker.began for taker in core.takers if not taker.gate.is_open),
            waited_for_slots=times.slots,
            waited_at_gate=times.gate,
            publishing=times.publishing,
            seconds=0.0 if times.began is None else now - times.began,
        )


def _histogram(durations: Durations) -> Histogram:
    return Histogram(*durations.counted())


def missing_groups(core: RolloutCore, describe: Callable[[RolloutCall, float], str]) -> str:
    """Say what a waiting trainer lacks; empty if none waits.

    Args:
        core: the queue.
        describe: says how long a call runs, which began at a time.
    """
    machine = core.machine
    if not core.takers or machine.is_weighed:
        return ""
    size = int(machine.batch_size)
    missing = max(0, size - machine.census[GroupState.READY])
    text = f"{missing} of {counted(size, 'group')} are missing"
    slowest = core.slowest_calls(1)
    return f"{text}: {describe(*slowest[0])}" if slowest else text
