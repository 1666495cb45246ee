"""Restarts: whether a worker that has failed is started again, and after which pause.

`Restart` is what users choose. `RestartPolicy` applies it in one run: it counts the failures of
each worker, logs those that a restart follows, and says how long to wait. The worker itself waits,
at the gate of the policy, which a stop, a drain or the end of the queue opens. So nothing polls,
and a worker never sleeps on when it is no longer wanted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import anyio

from aioqueue.base.arguments import (
    Backoff,
    checked_count,
    checked_delay,
    checked_exceptions,
    checked_seconds,
    checked_share,
    delay_of,
    is_int,
)
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import shorten, text_of
from aioqueue.coordination.classify import as_failure
from aioqueue.coordination.workers import WorkerPlan
from aioqueue.core.meters import Meter
from aioqueue.errors import (
    InvalidArgumentError,
    add_note,
    counted,
    describe_exception,
    without_frames,
)
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate

_log: Final = logging.getLogger("aioqueue")


@public("aioqueue", hints="coordinators")
@dataclass(frozen=True)
class Restart:
    """Start a worker of a `QueueRunner` again when it has failed.

    A restarted worker keeps its thread or task, and its name, and calls its op again. Each failure
    is logged as a warning with its traceback, in the log ``aioqueue``. When the restarts are used
    up, the next failure ends the worker, as without a `Restart`: `Coordinator.join` raises it, with
    a note of the failures before. The queue stays open during a pause.

    What ends a run normally restarts nothing: a queue-closed exception, a stop, a cancellation, and
    a failure after the queue was closed. Nor do `SystemExit` and `KeyboardInterrupt`. If the queue
    is closed during the pause, the op is not called again, and the failure is final.

    No element is lost in the queue or repeated there. But an element that an op has taken from
    somewhere and not yet enqueued when it fails is lost with that call.

    Args:
        times: how many times in a row a worker is started again: an int >= 1.
        backoff: seconds to wait before a restart, or a function that takes the number of failures
            in a row (1 before the first restart) and returns the seconds. If it has a parameter
            ``error``, it also gets the latest failure. A stop ends the wait at once.
        on: the exception class or classes that are worth a restart. Other failures are final.
        reset_after: seconds after which the count of failures in a row starts again, if the worker
            has run so long since its start without a failure; ``None`` counts all failures of a
            run.
        jitter: lengthens each wait by a random share of it, up to this one, so that workers that
            fail together do not come back together: a number from 0 to 1.
        seed: makes the random shares the same in each run; ``None`` takes fresh ones.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    times: int
    backoff: float | Backoff = 0.0
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    reset_after: float | None = None
    jitter: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        checked_count(self.times, "times", least=1)
        if not callable(self.backoff):
            checked_delay(self.backoff)
        checked_exceptions(self.on, "on")
        if self.reset_after is not None:
            checked_seconds(self.reset_after, "reset_after", otherwise=", or None")
        checked_share(self.jitter, "jitter")
        if self.seed is not None and not is_int(self.seed):
            raise InvalidArgumentError(f"seed: got {self.seed!r}; expected an int or None")


def checked_restart(restart: Any) -> Restart | None:
    """Return the argument ``restart`` of a runner.

    Raises:
        InvalidArgumentError: it is neither a `Restart` nor ``None``.
    """
    if restart is None or isinstance(restart, Restart):
        return restart
    raise InvalidArgumentError(f"restart: got {restart!r}; expected an aioqueue.Restart, or None")


class _History:
    """The failures of one worker. Only the worker itself changes it."""

    __slots__ = ("began", "failure", "in_a_row", "latest", "total")

    def __init__(self, began: float) -> None:
        self.began = began  # the latest start, on the clock of `time.perf_counter`
        self.failure: BaseException | None = None  # the latest, while a restart is to follow
        self.in_a_row = 0
        self.total = 0
        self.latest = ""


class RestartPolicy:
    """Applies a `Restart` to the workers of one run.

    Args:
        restart: what the user has chosen.
    """

    def __init__(self, restart: Restart) -> None:
        from random import Random  # most programs restart nothing

        self.over: Gate = Gate()
        """Open once no worker is to be started again. Workers wait at it for their restart."""
        self._restart = restart
        # Each worker adds and changes its own entry only; both are atomic.
        self._histories: dict[WorkerPlan, _History] = {}
        self._random = Random() if restart.seed is None else None

    @property
    def count(self) -> int:
        return sum(history.total for history in list(self._histories.values()))

    def pause_after(self, plan: WorkerPlan, meter: Meter, failure: BaseException) -> float | None:
        """Decide about the failure of a worker, and log it if the worker is started again.

        Args:
            plan: the worker.
            meter: its meter.
            failure: why it has failed.

        Returns:
            The seconds after which it is to begin again; ``None`` if the failure is final.

        Raises:
            BaseException: the function ``backoff`` raised it.
        """
        restart, history = self._restart, self._histories.get(plan)
        if history is None:
            history = self._histories[plan] = _History(meter.began)
        # Counted from the latest start, without the pause before it: a worker that fails at once
        # after each long pause is not healthy.
        healthy = restart.reset_after
        if healthy is not None and perf_counter() - history.began >= healthy:
            history.in_a_row = 0
        if history.in_a_row >= restart.times or not isinstance(failure, restart.on):
            return None
        # Before anything is counted: `backoff` is the user's function, and may raise.
        pause = self._pause(history.in_a_row + 1, failure, f"{plan.number} {history.total}")
        history.in_a_row += 1
        history.total = meter.restarts = history.total + 1
        history.latest = describe_exception(failure)
        shorten(failure)
        # Without its frames, which would keep alive what the failed call held.
        history.failure = without_frames(failure)
        if history.failure is not failure:
            add_note(history.failure, text_of(failure).rstrip())
        _log.warning(
            "worker %s failed, and is started again %s (restart %d of %d)",
            plan.name,
            f"in {pause:.3g} s" if pause else "at once",
            history.in_a_row,
            restart.times,
            exc_info=failure,
        )
        return pause

    def _pause(self, failures: int, failure: BaseException, place: str) -> float:
        restart = self._restart
        try:
            pause = delay_of(restart.backoff, failures, failure)
        except BaseException as raised:  # nothing is awaited here, so no task was cancelled
            raise as_failure(raised, f"backoff raised {describe_exception(raised)}")  # noqa: B904
        if restart.jitter:
            from random import Random

            # A text as the seed: the share depends on the worker and its failures, not on timing.
            random = self._random or Random(f"{restart.seed} {place}")
            pause *= 1 + restart.jitter * random.random()
        return pause

    def wait_blocking(self, plan: WorkerPlan, meter: Meter, pause: float) -> None:
        """Block a worker's thread until its restart is due, or none is wanted any more."""
        began = self._note_pause(plan, pause)
        if pause:
            # Without scopes: a stop, a drain and the end of the queue open the gate itself.
            self.over.wait_blocking(pause, ())
        self._note_resumption(plan, meter, began)

    async def wait(self, plan: WorkerPlan, meter: Meter, pause: float) -> None:
        """Wait until the restart of a task is due. This always lets other tasks run."""
        began = self._note_pause(plan, pause)
        with anyio.move_on_after(pause):
            await self.over.wait(current_waker())
        self._note_resumption(plan, meter, began)

    def end_pause(self, plan: WorkerPlan, *, is_closed: bool) -> None:
        """Let a worker begin again, unless its queue was closed during the pause.

        Another call of its op could enqueue nothing, and would lose what it takes elsewhere.

        Raises:
            BaseException: the queue was closed: the worker's failure is final.
        """
        history = self._histories[plan]
        failure, history.failure = history.failure, None
        # After a stop or a drain `is_closed` is false, though the queue may be closed: the worker
        # is no longer wanted, and the failure was forgiven.
        if is_closed and failure is not None:
            history.total -= 1
            add_note(failure, "the worker was not started again: its queue was closed meanwhile")
            raise failure

    def _note_pause(self, plan: WorkerPlan, pause: float) -> float:
        plan.paused = f"for {pause:.3g} s, after {self._histories[plan].latest}"
        return perf_counter()

    def _note_resumption(self, plan: WorkerPlan, meter: Meter, paused: float) -> None:
        plan.paused = ""
        self._histories[plan].began = now = perf_counter()
        meter.paused += now - paused

    def explain_on(self, failure: BaseException, plan: WorkerPlan) -> None:
        """Note on a final failure how often its worker was started again before."""
        history = self._histories.get(plan)
        if history is not None and history.total:
            add_note(
                failure,
                f"the worker had been started again {counted(history.total, 'time')} before, the"
                f" last time after {history.latest}",
            )
