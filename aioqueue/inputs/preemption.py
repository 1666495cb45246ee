"""Preemption: a flag that is set when this process is about to be ended.

The signal handler sets the flag and does nothing else. The training loop checks it between two
batches, saves its state and leaves. The pipeline needs none of the remaining time, because its
position is always that of the last batch.

`PreemptionAlarm` wakes the runs that wait for a batch meanwhile. A run and a `Preemption` do not
know each other; both use the alarm, of which each process has one, because signals concern the
whole process.
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
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args
from weakref import WeakSet

from aioqueue import InvalidArgumentError, PreemptedError
from aioqueue.arguments import checked_seconds
from aioqueue.locks import guarded
from aioqueue.public_names import public

__all__ = ("ALARM", "Notice", "OnWait", "Preemption", "PreemptionAlarm", "PreemptionSleeper")


@public("aioqueue.inputs")
class Notice(NamedTuple):
    """The announcement that this machine is about to be taken away."""

    reason: str
    """Which cloud says so, and what it announces: ``"AWS: terminate"``."""
    seconds: float | None = None
    """The time that is left from now; ``None`` if the cloud does not say."""


class PreemptionSleeper(Protocol):
    """Something that may wait for a batch."""

    def wake(self, reason: str) -> None:
        """Stop waiting for batches, for this reason.

        Any thread or signal handler may call it, more than once. It neither waits nor raises.
        """


class PreemptionAlarm:
    """Wakes all sleepers; it rings until the caller that rang it turns it off.

    A sleeper that registers while it rings is woken at once. The alarm does not keep sleepers
    alive.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all below; a signal handler may ring
        self._sleepers: WeakSet[PreemptionSleeper] = WeakSet()
        self._ringing: dict[object, str] = {}  # the reasons, by caller

    def listen(self, sleeper: PreemptionSleeper) -> None:
        """Register a sleeper. If the alarm rings already, wake it at once."""
        reason = self._enter(sleeper)
        if reason is not None:
            sleeper.wake(reason)

    def ring(self, who: object, reason: str) -> None:
        """Wake all sleepers, and those that register later."""
        for sleeper in self._ring(who, reason):
            sleeper.wake(reason)

    def turn_off(self, who: object) -> None:
        """End the ringing of one caller, if it has rung."""
        self._turn_off(who)

    @guarded
    def _enter(self, sleeper: PreemptionSleeper) -> str | None:
        self._sleepers.add(sleeper)  # before the check: a signal handler may ring in between
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
"""What happens to loops that wait for a batch when the flag is set."""

_log: Final = logging.getLogger("aioqueue")

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)

_POLL: Final = 5.0


@public("aioqueue.inputs", hints="inputs")
class Preemption:
    """A flag that is set when this process is about to be ended. Use it as a context manager.

    It is true from then on. It saves nothing by itself::

        with Preemption() as preempted:
            for batch in epoch:
                train(batch)
                if preempted:
                    save()
                    break

    Both ``with`` and ``async with`` work. Python handles signals in the main thread, so enter it
    there unless ``signals`` is empty. It also calls the handlers that were installed before, and
    restores them when you leave it. Meanwhile it suppresses default actions, which would end or
    interrupt the process. A signal wakes the main thread. There is one exception that Python cannot
    detect: a signal in the microseconds before the thread falls asleep takes effect when something
    else wakes the thread (in trio at once).

    Args:
        signals: the signals that set it. By default these are SIGTERM and, on systems that have it,
            SIGUSR1, which SLURM sends with ``--signal=USR1@120``.
        file: a file whose existence sets it.
        notice: a function that sets it by returning a true value: `aws_notice`, `gcp_notice`,
            `azure_notice`, or one of yours. A separate thread calls it, so it may block. A `Notice`
            also gives the reason and the time that is left. If the function raises, the error is
            logged and available as `notice_error`, and the thread asks again.
        every: seconds between two checks of the file and of the notice, >= 0.
        grace: seconds until the process may be killed, for `deadline`, unless a notice says how
            many; ``None`` if you do not know.
        on_wait: what happens to loops in this process that wait for a batch of a `Pipeline`.
            ``"wait"``: they continue to wait, and see the flag after that batch. ``"stop"``: a loop
            that waits, or would have to, gets a `PreemptedError` at once; its position is that of
            the last batch. A source or function that runs in the loop's own thread is not
            interrupted.
        callback: a function to call once when it is set. It runs in the main thread inside a signal
            handler, or in the checking thread, so it must neither block nor raise.

    Raises:
        InvalidArgumentError: any argument is not as described.
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
        self._lock = threading.RLock()  # guards the next two; a signal handler sets them
        self._reason: str | None = None
        self._deadline: float | None = None
        self._notice_error: Exception | None = None
        self._is_over: threading.Event | None = None  # set while it is entered

    def __bool__(self) -> bool:
        """Return whether this process is about to be ended."""
        return self._reason is not None

    def __repr__(self) -> str:
        state = "not preempted" if self._reason is None else f"preempted by {self._reason}"
        return f"<{type(self).__module__}.{type(self).__name__} {state}>"

    @property
    def reason(self) -> str | None:
        """What has set it: the name of a signal, ``"file"``, a `Notice`'s reason or ``"notice"``,
        ``"request"``; ``None`` if it is not set."""
        return self._reason

    @property
    def deadline(self) -> float | None:
        """When the process may be killed, by `time.monotonic`; ``None`` if unknown."""
        return self._deadline

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the deadline, >= 0; ``None`` if unknown or if it is not set."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def notice_error(self) -> Exception | None:
        """Why the last call of ``notice`` failed; ``None`` if it succeeded."""
        return self._notice_error

    def check(self) -> None:
        """Raise the error that also wakes waiting loops, if it is set.

        With it your loop has one way out.

        Raises:
            PreemptedError: this process is about to be ended.
        """
        if self._reason is not None:
            raise PreemptedError(
                f"this process is about to be ended: {self._reason}", reason=self._reason
            )

    def request(self, reason: str = "request", *, seconds: float | None = None) -> None:
        """Set it yourself. Any thread may call it; only the first call counts.

        Args:
            reason: the reason to report.
            seconds: the seconds that are left; ``None`` for ``grace``.

        Raises:
            InvalidArgumentError: ``seconds`` is not a number of seconds.
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
            raise RuntimeError("this Preemption is entered already; make a new one for each `with`")
        try:
            for number in self._signals:
                self._earlier[number] = signal.signal(number, self._on_signal)
        except ValueError as error:
            self._restore()
            raise RuntimeError(
                "only the main thread can handle signals: enter it there, or pass signals=()"
            ) from error
        except OSError as error:
            self._restore()
            raise InvalidArgumentError(
                f"signals: got {number.name}, which the system reserves; expected others"
            ) from error
        is_over = self._is_over = threading.Event()
        if self._reason is not None and self._wakes:
            ALARM.ring(self, self._reason)  # it was set before it was entered
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
        """Set the flag; return whether this was the first time."""
        if self._reason is not None:
            return False
        if seconds is not None:
            self._deadline = time.monotonic() + seconds
        self._reason = reason
        return True

    def _restore(self) -> None:
        while self._earlier:
            number, earlier = self._earlier.popitem()
            # None: a handler that Python did not install, and cannot restore.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
        earlier = self._earlier.get(number)
        # Python's own reaction to Ctrl-C is a default action too.
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    def _watch(self, is_over: threading.Event) -> None:
        """Run the checking thread."""
        try:
            self._look_until(is_over)
        except BaseException:
            _log.error("the check for preemption has ended: its thread failed", exc_info=True)
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
            _log.warning("the preemption notice works again")
            self._notice_error = None  # last, so that the log is complete when this changes
        if isinstance(answer, Notice):
            return answer
        return Notice("notice") if answer else None

    def _tell(self, error: Exception) -> None:
        """Log that the notice failed: the first time, and when the error changes."""
        before = self._notice_error
        if before is None or (type(before), str(before)) != (type(error), str(error)):
            _log.warning(
                "the preemption notice failed; it is called again every %g s",
                self._every,
                exc_info=error,
            )
        self._notice_error = error
