"""Preemption: a flag that is set when this process is about to be ended.

The signal handler sets the flag and does nothing else. The training loop checks it between two
batches, saves its state and leaves. The pipeline needs none of the remaining time, because its
position is always that of the last batch.

`PreemptionAlarm` wakes the runs that wait for a batch meanwhile. A run and a `Preemption` do not
know each other. Both use the alarm. Each process has one alarm, because signals concern the
whole process.

Clouds give notice before they take a machine away. Each function of a cloud asks the metadata
server of its cloud. That server answers only from within a machine and needs no credentials. A
thread of `Preemption` calls the functions again and again, so they may block. They raise if the
server gives no answer; `Preemption` then logs the error and asks again.

Sources:
    "Spot Instance interruption notices" and "Use IMDSv2" in the Amazon EC2 User Guide; "Create and
    use Spot VMs" in the documentation of Google Compute Engine; "Scheduled Events" in that of Azure
    virtual machines.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from os import PathLike
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, get_args

from aioqueue import InvalidArgumentError, PreemptedError
from aioqueue.base.arguments import checked_seconds
from aioqueue.base.display_text import on_one_line
from aioqueue.base.json_files import parsed
from aioqueue.base.public_names import public
from aioqueue.errors import describe_exception
from aioqueue.system.forks import LivingObjects
from aioqueue.system.locks import synchronized

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

_LINK_LOCAL: Final = "http://169.254.169.254"
_AWS_TOKEN_SECONDS: Final = 21600
_LONGEST_ANSWER: Final = 2**20
"""How many bytes an answer of a metadata server may have. Theirs have some hundreds."""
_GCP_GRACE: Final = 30.0
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404

_AZURE_ENDS: Final = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Events that end the processes of a machine. ``Freeze``, a pause, is not one of them."""


@public("aioqueue.inputs")
class Notice(NamedTuple):
    """The announcement that this machine is about to be taken away."""

    reason: str
    """Which cloud says so, and what it announces: ``"AWS: terminate"``."""
    seconds: float | None = None
    """The time that is left from now; ``None`` if the cloud does not say."""


def aws_notice(*, endpoint: str = _LINK_LOCAL, timeout: float = 2.0) -> Callable[[], Notice | None]:
    """Make a notice for AWS spot instances, which comes two minutes before a stop or termination.

    It uses IMDSv2, with a session token that it keeps for the token's six hours. AWS recommends
    asking every 5 seconds.

    Args:
        endpoint: the address of the instance metadata service; ``"http://[fd00:ec2::254]"`` for
            IPv6.
        timeout: seconds to wait for an answer, >= 0.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        service, as on a machine outside AWS.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    return _AWS(_Server(endpoint, timeout))


def gcp_notice(
    *, endpoint: str = "http://metadata.google.internal", timeout: float = 2.0
) -> Callable[[], Notice | None]:
    """Make a notice for Spot VMs of Google Compute Engine, about 30 seconds before the shutdown.

    Args:
        endpoint: the address of the metadata server.
        timeout: seconds to wait for an answer, >= 0.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        server, as on a machine outside Google Cloud.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    server = _Server(endpoint, timeout)

    def notice() -> Notice | None:
        path = "/computeMetadata/v1/instance/preempted"
        answer = server.get(path, {"Metadata-Flavor": "Google"}).strip()
        if answer not in ("TRUE", "FALSE"):
            raise ValueError(f"{endpoint}{path}: got the answer {answer!r}; expected TRUE or FALSE")
        return Notice("GCP: preempted", _GCP_GRACE) if answer == "TRUE" else None

    return notice


def azure_notice(
    *,
    endpoint: str = _LINK_LOCAL,
    timeout: float = 120.0,
    events: Collection[str] = _AZURE_ENDS,
) -> Callable[[], Notice | None]:
    """Make a notice for the scheduled events of Azure that concern this virtual machine.

    Azure announces the eviction of a spot machine at least 30 seconds ahead. The deadline is the
    ``NotBefore`` of the event. Events of other machines, such as those of a scale set, do not
    count.

    Args:
        endpoint: the address of the instance metadata service.
        timeout: seconds to wait for an answer, >= 0. The first answer on a machine may take two
            minutes, because the first request turns the service on.
        events: the types of events that count. By default these are all that end processes; so
            ``"Freeze"``, a pause of some seconds, does not count.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        service, as on a machine outside Azure.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    return _Azure(_Server(endpoint, timeout), frozenset(events))


class _Server:
    """A metadata server."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._timeout = checked_seconds(timeout, "timeout")
        from urllib.request import ProxyHandler, build_opener

        # The server is on the machine itself, where no proxy of the environment would find it.
        self._opener: OpenerDirector = build_opener(ProxyHandler({}))

    def get(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        """Return the server's answer.

        Raises:
            HTTPError: the server answers with a status other than success.
            OSError: the server cannot be reached.
        """
        from urllib.error import HTTPError
        from urllib.request import Request

        request = Request(self.endpoint + path, headers=dict(headers), method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                content: bytes = answer.read(_LONGEST_ANSWER + 1)
        except HTTPError as error:
            error.close()  # it is an answer too, and has the connection
            raise
        if len(content) > _LONGEST_ANSWER:
            raise ValueError(f"{self.endpoint}{path}: got more than {_LONGEST_ANSWER} bytes")
        return content.decode()


class _AWS:
    """See `aws_notice`."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._token: str | None = None

    def __call__(self) -> Notice | None:
        from urllib.error import HTTPError

        if self._token is not None:
            try:
                return self._asked(self._token)
            except HTTPError as error:
                if error.code != _UNAUTHORIZED:
                    raise  # else the token has expired
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_SECONDS)}
        self._token = self._server.get("/latest/api/token", lifetime, "PUT")
        return self._asked(self._token)

    def _asked(self, token: str) -> Notice | None:
        from urllib.error import HTTPError

        try:
            answer = self._server.get(
                "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}
            )
        except HTTPError as error:
            if error.code != _NOT_FOUND:
                raise
            return None  # nothing is going to happen
        action = parsed(answer)
        when = datetime.fromisoformat(action["time"])  # as 2017-09-18T08:22:00Z
        return Notice(f"AWS: {action['action']}", _seconds_until(when))


class _Azure:
    """See `azure_notice`."""

    def __init__(self, server: _Server, events: frozenset[str]) -> None:
        self._server = server
        self._events = events
        self._name: str | None = None  # the name of this machine

    def __call__(self) -> Notice | None:
        if self._name is None:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = self._server.get(path, {"Metadata": "true"}).strip()
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        document = parsed(self._server.get(path, {"Metadata": "true"}))
        notices = [
            _azure_notice_of(event)
            for event in document["Events"]
            if event["EventType"] in self._events and self._name in event["Resources"]
        ]
        return min(notices, key=lambda notice: notice.seconds or 0.0, default=None)


def _azure_notice_of(event: Mapping[str, Any]) -> Notice:
    from email.utils import parsedate_to_datetime

    # `NotBefore` is empty once the event has begun.
    when = event.get("NotBefore")
    seconds = _seconds_until(parsedate_to_datetime(when)) if when else 0.0
    return Notice(f"Azure: {event['EventType']}", seconds)


def _seconds_until(when: datetime) -> float:
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


class PreemptionSleeper(Protocol):
    """Something that may wait for a batch."""

    def wake(self, reason: str) -> None:
        """Stop waiting for batches, for this reason.

        Any thread or signal handler may call it, more than once. It neither waits nor raises.
        """


class PreemptionAlarm:
    """Wakes all sleepers; it rings until the caller that rang it turns it off.

    It does not keep sleepers alive. It needs no lock: who begins to sleep adds itself first, and
    then looks at `reasons`; who rings sets its reason first, and then looks at `sleepers`. So one
    of the two sees the other, also where a signal handler rings in between. Both may; a sleeper
    may be woken twice.
    """

    def __init__(self) -> None:
        self.sleepers: LivingObjects = LivingObjects()
        """What may wait for a batch: a `PreemptionSleeper` adds itself. If the alarm rings already,
        it then has itself woken."""
        self.reasons: dict[object, str] = {}
        """Why it rings, by caller; empty while it does not."""

    def wake(self, sleeper: PreemptionSleeper) -> None:
        """Wake one sleeper, if the alarm still rings."""
        for reason in list(self.reasons.values())[:1]:
            sleeper.wake(reason)

    def ring(self, origin: object, reason: str) -> None:
        """Wake all sleepers, and those that register later."""
        self.reasons[origin] = reason
        for sleeper in self.sleepers.listed():
            sleeper.wake(reason)

    def turn_off(self, origin: object) -> None:
        """End the ringing of one caller, if it has rung."""
        self.reasons.pop(origin, None)


ALARM: Final = PreemptionAlarm()


OnWait = Literal["wait", "stop"]
"""What happens to loops that wait for a batch when the flag is set."""

_log: Final = logging.getLogger("aioqueue")

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)

_POLL: Final = 5.0


_END_THE_PROCESS: Final = {"asyncio", "ray", "trio"}


def _ends_the_process(handler: Any) -> bool:
    """Whether a handler is known to do nothing but end the process, or what it needs to go on.

    That is what Python and event loops do at Ctrl-C. The handler that ``ray.init()`` installs
    exits, and kills the cluster that the program has started.
    """
    function = getattr(handler, "func", handler)  # of a partial
    module = getattr(function, "__module__", None) or ""
    return function is signal.default_int_handler or module.partition(".")[0] in _END_THE_PROCESS


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
    restores them when you leave it. Meanwhile it suppresses what would end or interrupt the process
    before you have saved: default actions, the handlers of asyncio, trio and ``ray.init()``, and
    exceptions of other handlers except ``KeyboardInterrupt``. A handler that is installed inside
    the block replaces its own, so call ``ray.init()`` before.

    A signal wakes the main thread. There is one exception that Python cannot detect: a signal in
    the microseconds before the thread falls asleep takes effect when something else wakes the
    thread (in trio at once).

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
        self._reported_handlers: set[int] = set()
        self._lock = threading.RLock()  # guards the next two; a signal handler sets them
        self._reason: str | None = None
        self._deadline: float | None = None
        self._notice_error: Exception | None = None
        self._is_over: threading.Event | None = None  # set while it is entered

    def __bool__(self) -> bool:
        """Return whether this process is about to be ended."""
        if self._earlier:
            self._report_replaced_handlers()
        return self._reason is not None

    def __repr__(self) -> str:
        state = "not preempted" if self._reason is None else f"preempted by {self._reason}"
        return on_one_line(f"<{type(self).__module__}.{type(self).__name__} {state}>")

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

    @synchronized
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
            if signal.getsignal(number) != self._on_signal:
                continue  # replaced meanwhile: that one is for who has installed it
            # None: a handler that Python did not install, and cannot restore.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
        earlier = self._earlier.get(number)
        if not callable(earlier) or _ends_the_process(earlier):
            return
        try:
            earlier(number, frame)
        except (Exception, SystemExit) as error:  # a KeyboardInterrupt may be of a Ctrl-C just now
            # It would interrupt the step at whatever line the main thread is.
            _log.warning(
                "the earlier handler of %s raised %s, which is ignored until the block is left: "
                "save the position, then end the program",
                signal.Signals(number).name,
                describe_exception(error),
            )

    def _report_replaced_handlers(self) -> None:
        for number in self._earlier.keys() - self._reported_handlers:
            handler = signal.getsignal(number)
            if handler != self._on_signal and not isinstance(
                getattr(handler, "__self__", None), Preemption
            ):
                self._reported_handlers.add(number)
                _log.warning(
                    "another handler of %s replaced Preemption's inside its block, so the signal "
                    "may not be noticed: call what installs it (ray.init(), for one) before the "
                    "block; the handler is %r",
                    signal.Signals(number).name,
                    handler,
                )

    def _watch(self, is_over: threading.Event) -> None:
        try:
            self._poll_until(is_over)
        except BaseException:
            _log.error("the check for preemption has ended: its thread failed", exc_info=True)
            raise

    def _poll_until(self, is_over: threading.Event) -> None:
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
            self._report_error(error)
            return None
        if self._notice_error is not None:
            _log.warning("the preemption notice works again")
            self._notice_error = None  # last, so that the log is complete when this changes
        if isinstance(answer, Notice):
            return answer
        return Notice("notice") if answer else None

    def _report_error(self, error: Exception) -> None:
        """Log that the notice failed: the first time, and when the error changes."""
        before = self._notice_error
        if before is None or (type(before), str(before)) != (type(error), str(error)):
            _log.warning(
                "the preemption notice failed; it is called again every %g s",
                self._every,
                exc_info=error,
            )
        self._notice_error = error
