"""Waking those who wait for a batch when this process is to end soon.

Who waits is a run of a pipeline; who wakes it is a `Preemption`. Neither knows the other: both know
the alarm, of which there is one per process, as signals are for all of it.

Preemption: being told to stop soon, and stopping between two batches.

A flag is set, and nothing else is done in a signal handler: the training loop looks at it between
two batches, saves what it has, and leaves. The data need none of the time that is left, since the
position of a pipeline is always that of the last batch.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from os import PathLike
from types import FrameType
from typing import Any, Final, Literal, Protocol, get_args
from weakref import WeakSet

from aioqueue import InvalidArgumentError, PreemptedError
from aioqueue.arguments import checked_seconds
from aioqueue.inputs.cloud_notices import Notice
from aioqueue.locks import guarded

__all__ = ("ALARM", "OnWait", "Preemption", "PreemptionAlarm", "PreemptionSleeper")


class PreemptionSleeper(Protocol):
    """What may wait for a batch."""

    def wake(self, reason: str) -> None:
        """No batch is to be waited for any more, for this reason.

        Called in any thread or signal handler, and more than once; does neither wait nor raise.
        """


class PreemptionAlarm:
    """Rings until whoever has rung it turns it off: who goes to sleep meanwhile hears it as well.

    Sleepers are not kept alive by it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below; a signal handler may ring
        self._sleepers: WeakSet[PreemptionSleeper] = WeakSet()
        self._ringing: dict[object, str] = {}  # for what reason, by who has rung it

    def listen(self, sleeper: PreemptionSleeper) -> None:
        """Have somebody woken when it rings; at once, if it does."""
        reason = self._enter(sleeper)
        if reason is not None:
            sleeper.wake(reason)

    def ring(self, who: object, reason: str) -> None:
        """Wake all, and those who come later."""
        for sleeper in self._ring(who, reason):
            sleeper.wake(reason)

    def turn_off(self, who: object) -> None:
        """Somebody does not ring it any more, who may never have."""
        self._turn_off(who)

    @guarded
    def _enter(self, sleeper: PreemptionSleeper) -> str | None:
        self._sleepers.add(sleeper)  # and then ask: a signal handler may ring in between
        return next(iter(self._ringing.values()), None)

    @guarded
    def _ring(self, who: object, reason: str) -> list[PreemptionSleeper]:
        self._ringing[who] = reason
        return list(self._sleepers)

    @guarded
    def _turn_off(self, who: object) -> None:
        self._ringing.pop(who, None)


ALARM: Final = PreemptionAlarm()


OnWait = Literal["wait", "stop"]
"""What becomes of a loop that waits for a batch when it is set."""

_log: Final = logging.getLogger("aioqueue")

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)

_POLL: Final = 5.0


class Preemption:
    """A flag that is set when this process is to end soon. A context manager, of both kinds.

    It is true from then on, and saves nothing by itself::

        with Preemption() as preempted:
            for batch in epoch:
                train(batch)
                if preempted:
                    save()
                    break

    Signals are handled in the main thread, so it must be entered there if there are any. Handlers
    that were there before are called too, and are there again when it is left; a default action,
    which would end or interrupt the process, is not carried out meanwhile. A signal
    wakes the main thread; only one that comes in the microseconds before that falls asleep is heard
    when something else wakes it (in trio at once), since Python cannot tell it.

    Args:
        signals: which ones set it; by default SIGTERM and, where there is one, SIGUSR1, which SLURM
            sends with ``--signal=USR1@120``.
        file: a file whose existence sets it.
        notice: a function whose true result sets it: `aws_notice`, `gcp_notice`, `azure_notice`, or
            one of yours. It is called by a thread of its own, and may block. If it returns a
            `Notice`, that says the reason and how much time is left. What it raises is told by the
            log, and by `notice_error`; it is asked again.
        every: seconds between two looks at the file and at the notice, >= 0.
        grace: seconds that are left then, for `deadline`, unless a notice says how many;
            ``None`` if that is not known.
        on_wait: what becomes of loops that wait for a batch of a `Pipeline` then, in this whole
            process. ``"wait"``: they go on, and look at the flag behind that batch. ``"stop"``:
            whoever waits, or would have to wait, gets a `PreemptedError` at once; its position is
            that of the last batch. Not where the loop's own thread runs the source, or a function:
            that goes on until it returns.
        callback: called once when it is set: in the main thread, inside of a signal handler, or in
            the thread that looks; so it must neither block nor raise.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    def __init__(
        self,
        signals: Iterable[int] = _SIGNALS,
        *,
        file: str | PathLike[str] | None = None,
        notice: Callable[[], Any] | None = None,
        every: float = _POLL,
        grace: float | None = 30.0,
        on_wait: OnWait = "wait",
        callback: Callable[[], object] | None = None,
    ) -> None:
        try:
            self._signals = tuple(signal.Signals(number) for number in signals)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"signals: got {signals!r}; expected signals, such as signal.SIGTERM"
            ) from error
        for name, one in (("notice", notice), ("callback", callback)):
            if one is not None and not callable(one):
                raise InvalidArgumentError(f"{name}: got {one!r}; expected a function or None")
        if on_wait not in get_args(OnWait):
            raise InvalidArgumentError(f"on_wait: got {on_wait!r}; expected 'wait' or 'stop'")
        self._file = file
        self._notice = notice
        self._every = checked_seconds(every, "every")
        self._grace = (
            None if grace is None else checked_seconds(grace, "grace", otherwise=" or None")
        )
        self._wakes = on_wait == "stop"
        self._callback = callback
        self._earlier: dict[int, Any] = {}
        self._lock = threading.RLock()  # guards the two below; a signal handler sets them
        self._reason: str | None = None
        self._deadline: float | None = None
        self._notice_error: Exception | None = None
        self._is_over: threading.Event | None = None  # while it is entered

    def __bool__(self) -> bool:
        """Whether this process is to end soon."""
        return self._reason is not None

    def __repr__(self) -> str:
        state = "not preempted" if self._reason is None else f"preempted by {self._reason}"
        return f"<{type(self).__module__}.{type(self).__name__} {state}>"

    @property
    def reason(self) -> str | None:
        """What has set it: the name of a signal, ``"file"``, what a `Notice` says or ``"notice"``,
        ``"request"``."""
        return self._reason

    @property
    def deadline(self) -> float | None:
        """When the process may be killed, by `time.monotonic`; ``None`` if that is not known."""
        return self._deadline

    @property
    def seconds_left(self) -> float | None:
        """How long until then, >= 0; ``None`` if that is not known, or it is not set."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def notice_error(self) -> Exception | None:
        """Why the notice could not be asked for the last time; ``None`` if it could."""
        return self._notice_error

    def check(self) -> None:
        """Raise what also wakes those who wait, if it is set: for a loop to leave in one way.

        Raises:
            PreemptedError: this process is to end soon.
        """
        if self._reason is not None:
            raise PreemptedError(
                f"this process is to end soon, says {self._reason}", reason=self._reason
            )

    def request(self, reason: str = "request", *, seconds: float | None = None) -> None:
        """Set it by hand. From any thread; only the first time counts.

        Args:
            reason: what is to be told.
            seconds: how many are left; ``None`` for the usual ``grace``.

        Raises:
            InvalidArgumentError: it is no number of seconds.
        """
        if seconds is not None:
            seconds = checked_seconds(seconds, "seconds", otherwise=" or None")
        if not self._set(reason, self._grace if seconds is None else seconds):
            return
        if self._wakes and self._is_over is not None:
            ALARM.ring(self, reason)
        if self._callback is not None:
            self._callback()

    def __enter__(self) -> Preemption:
        if self._is_over is not None:
            raise RuntimeError("this preemption has been entered already: make another one")
        try:
            for number in self._signals:
                self._earlier[number] = signal.signal(number, self._on_signal)
        except ValueError as error:
            self._restore()
            raise RuntimeError(
                "signals can be handled by the main thread only: enter it there, or pass signals=()"
            ) from error
        except OSError as error:
            self._restore()
            raise InvalidArgumentError(
                f"signals: got {number.name}, which the system handles; expected others"
            ) from error
        is_over = self._is_over = threading.Event()
        if self._reason is not None and self._wakes:
            ALARM.ring(self, self._reason)  # it was set before
        if self._file is not None or self._notice is not None:
            threading.Thread(
                target=self._watch, args=(is_over,), name="aioqueue-preemption", daemon=True
            ).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()
        is_over, self._is_over = self._is_over, None
        ALARM.turn_off(self)
        if is_over is not None:
            is_over.set()

    async def __aenter__(self) -> Preemption:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    @guarded
    def _set(self, reason: str, seconds: float | None) -> bool:
        """Set it; tell whether this was the first time."""
        if self._reason is not None:
            return False
        if seconds is not None:
            self._deadline = time.monotonic() + seconds
        self._reason = reason
        return True

    def _restore(self) -> None:
        while self._earlier:
            number, earlier = self._earlier.popitem()
            # None: a handler that was not set by Python, and so cannot be set again.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
        earlier = self._earlier.get(number)
        # What Python does on Ctrl-C by itself is a default action too.
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    def _watch(self, is_over: threading.Event) -> None:
        """The life of the thread that looks."""
        try:
            self._look_until(is_over)
        except BaseException:
            _log.error("nobody looks for a preemption any more: its thread failed", exc_info=True)
            raise

    def _look_until(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            noticed = self._noticed()
            if noticed is not None and not is_over.is_set():
                self.request(noticed.reason, seconds=noticed.seconds)
                return
            is_over.wait(self._every)

    def _noticed(self) -> Notice | None:
        if self._file is not None and os.path.exists(self._file):
            return Notice("file")
        if self._notice is None:
            return None
        try:
            answer = self._notice()
        except Exception as error:
            self._tell(error)
            return None
        if self._notice_error is not None:
            _log.warning("the notice of a preemption can be asked for again")
            self._notice_error = None  # last: who sees it change finds it in the log
        if isinstance(answer, Notice):
            return answer
        return Notice("notice") if answer else None

    def _tell(self, error: Exception) -> None:
        """The notice cannot be asked for: told at first, and when that changes."""
        before = self._notice_error
        if before is None or (type(before), str(before)) != (type(error), str(error)):
            _log.warning(
                "a notice of a preemption could not be asked for; it is asked for again every %g s",
                self._every,
                exc_info=error,
            )
        self._notice_error = error
