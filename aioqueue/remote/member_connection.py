"""The connection between a program and the register of its coordinator.

One thread makes all calls. It reports the state of this program when it changes. One call is always
pending at the register, which answers it when something changes elsewhere, so there is no polling.
A caller that stops (in a signal handler, say) only leaves a message for this thread.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from aioqueue.errors import WorkerDiedError
from aioqueue.remote.members import News

_ACKNOWLEDGED_SECONDS: Final = 5.0
"""How long a failing worker waits at most until the register has its failure."""

_AGAIN_SECONDS: Final = 1.0
"""How long after a report that could not do all that it should the next one is made."""


class CoordinatorView(Protocol):
    """The coordinator of this program, as the connection's thread calls it."""

    def program_report(self) -> Any: ...

    def accept_news(self, news: News) -> None: ...

    def known_state(self) -> tuple[str, int, int, bool]:
        """Return what is known here: the arguments of `MemberRegister.news`."""

    def connection_lost(self, error: Exception) -> None: ...


class MemberConnection:
    """The connection of one program to the register; subclasses have the transport.

    Args:
        label: what the coordinator is called in messages.
        coordinator: returns the coordinator of this program, while it is in use.
        thread_name: name of the thread.
    """

    report_seconds: float | None = None
    """Seconds after which to report even if nothing has changed; ``None`` for never."""

    def __init__(
        self, label: str, coordinator: Callable[[], CoordinatorView | None], thread_name: str
    ) -> None:
        self.label = label
        self._coordinator = coordinator
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending: dict[object, Callable[[Any], object]] = {}  # calls without an answer
        self._is_report_scheduled = False
        self._report_at: float | None = None  # when to report, even if nothing has changed
        self._has_thread_ended = False
        self._acknowledged = 0  # failures that the register has
        self._waiting: dict[threading.Event, int] = {}  # each event waits for this many
        self._lock = threading.RLock()  # guards the two above
        self.ended_by: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    # The transport.

    def is_connected(self) -> bool:
        raise NotImplementedError

    def send(
        self, method: str, arguments: Any, answer: Callable[[Any, Exception | None], object]
    ) -> None:
        """Send a call to the register.

        Args:
            method: the method.
            arguments: its arguments.
            answer: called in any thread with the answer, or with why no answer came.
        """
        raise NotImplementedError

    def decoded(self, answer: Any) -> Any:
        """Return what an answer says, in the thread of the connection."""
        return answer

    def send_last(self, report: Any) -> None:
        """Send the last report, as this program no longer uses the coordinator."""
        raise NotImplementedError

    def died_error(self, error: BaseException) -> WorkerDiedError:
        """Return the error of a connection that a failure has ended."""
        raise NotImplementedError

    def ended_error(self) -> WorkerDiedError:
        """Return the error of a connection that this program has ended."""
        raise NotImplementedError

    def check(self) -> None:
        """Check that this process may use the connection.

        Raises:
            RuntimeError: it may not.
        """

    def is_current(self) -> bool:
        """Return whether the caller is the thread of the connection, which must not wait for it."""
        return threading.current_thread() is self._thread

    # Callable in any thread, in signal handlers, and by finalizers.

    def call_soon(self, call: Callable[[], object]) -> None:
        self._inbox.put(call)
        # First the call, then the question: either the thread has found it, or it is found here.
        if self._has_thread_ended:
            self._make_calls()

    def schedule_report(self) -> None:
        """Schedule a report, because something has changed here."""
        # One report covers all changes until it is made: many workers may begin or end at once.
        if not self._is_report_scheduled:
            self._is_report_scheduled = True
            self.call_soon(self._send_scheduled_report)

    def call_when_settled(self, then: Callable[[], object]) -> None:
        """Schedule a callback for when this program and the register know each other's state."""
        self.call_soon(partial(self._send_report, then))

    def leave(self) -> None:
        """Note that the coordinator is no longer in use here."""
        self._inbox.put(None)

    def schedule_request(self, then: Callable[[Any], object], method: str, *arguments: Any) -> None:
        """Schedule a call to the register.

        Args:
            then: called with the answer in that thread; with ``None`` if no answer came.
            method: method of the register.
            arguments: its arguments.
        """
        self.call_soon(partial(self._request, then, method, arguments))

    def until_acknowledged(self, count: int) -> None:
        """Wait, for a limited time, until the register has this many failures of this program.

        The thread of the connection does not wait for itself.
        """
        if self.is_current():
            return
        event = threading.Event()
        # Check and register under one lock: an acknowledgement or the end comes before, and is seen
        # here, or afterwards, and sets the event.
        with self._lock:
            if self._acknowledged >= count or self.ended_by is not None:
                return
            self._waiting[event] = count
        event.wait(_ACKNOWLEDGED_SECONDS)
        with self._lock:
            self._waiting.pop(event, None)

    def reset(self) -> None:
        with self._lock:
            self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """How many failures of this program the register has."""
        return self._acknowledged

    # In the thread of the connection.

    def _run(self) -> None:
        self._report_at = self._next_report()
        self._request_news()
        self._send_report()
        while self.is_connected():
            at = self._report_at
            try:
                call = self._inbox.get(timeout=None if at is None else max(0.0, at - monotonic()))
            except queue.Empty:
                self._report_at = self._next_report()
                call = self._send_report
            if call is None:
                break
            try:
                call()
            except Exception as error:  # fail all waiting calls, since no answer can come
                self._end(error)
            del call  # it may be the last reference to the coordinator
            if self.ended_by is not None:
                break
        else:
            self._end(self.ended_error())
        self._answer_remaining_calls()
        self._has_thread_ended = True
        self._make_calls()

    def _make_calls(self) -> None:
        """Make the calls that come when the thread has ended: each gets the end as its answer."""
        with suppress(queue.Empty):
            while True:
                call = self._inbox.get_nowait()
                if call is not None:
                    call()

    def report_again(self) -> None:
        """Report again after a moment, because a report could not do all that it should."""
        self._report_at = min(self._report_at or math.inf, monotonic() + _AGAIN_SECONDS)

    def _next_report(self) -> float | None:
        return None if self.report_seconds is None else monotonic() + self.report_seconds

    def _answer_remaining_calls(self) -> None:
        """Answer all remaining calls with the end of the connection."""
        if self.ended_by is None:
            with self._lock:
                self.ended_by = self.ended_error()
                for event in self._waiting:
                    event.set()
            report = self._last_report
            # The coordinator is gone by now, but other programs still need its last failures.
            if report is not None and self.is_connected():
                with suppress(Exception):
                    self.send_last(report)
            return
        # Callers may wait for an answer that no report can bring: each gets `None`.
        while self._coordinator() is not None:
            call = self._inbox.get()
            if call is None:
                return
            call()
            del call

    _last_report: Any = None

    def _send_scheduled_report(self) -> None:
        self._is_report_scheduled = False  # first: a change from here on needs a report of its own
        self._send_report()

    def _send_report(self, then: Callable[[], object] = bool) -> None:
        coordinator = self._coordinator()
        if coordinator is None or self.ended_by is not None:
            then()
            return
        report = coordinator.program_report()
        # Created early, while there still is a thread to create it.
        self._last_report = report._replace(workers=(), joining=(), number=report.number + 1)
        self._request(partial(self._on_report_answer, report.run, then), "report", (report,))

    def _on_report_answer(self, run: int, then: Callable[[], object], news: News | None) -> None:
        coordinator = self._coordinator()
        if news is not None and coordinator is not None:
            if news.run == run:  # counts of another run are of other failures
                self._note_acknowledged(news.taken)
            coordinator.accept_news(news)
        then()

    def _note_acknowledged(self, taken: int) -> None:
        with self._lock:
            self._acknowledged = max(self._acknowledged, taken)
            # Nobody updates the last report later: take out now what the register has.
            if self._last_report is not None:
                already = self._acknowledged - self._last_report.acknowledged
                self._last_report = self._last_report._replace(
                    acknowledged=self._acknowledged, failures=self._last_report.failures[already:]
                )
            for event, count in self._waiting.items():
                if count <= self._acknowledged:
                    event.set()

    def _request_news(self) -> None:
        coordinator = self._coordinator()
        if coordinator is not None:
            self._request(self._on_news, "news", coordinator.known_state())

    def _on_news(self, news: News | None) -> None:
        coordinator = self._coordinator()
        if news is not None and coordinator is not None:
            coordinator.accept_news(news)
            self._request_news()

    def _request(self, then: Callable[[Any], object], method: str, arguments: Any) -> None:
        if self.ended_by is not None:
            then(None)
            return
        # Registered before the call: `_end` answers it if the connection ends in the meantime.
        call_id = object()
        self._pending[call_id] = then
        if not self.is_connected():
            self._end(self.ended_error())
            return
        try:
            self.send(method, arguments, partial(self._schedule_answer, call_id))
        except Exception as error:  # the connection is just ending
            self._end(self.died_error(error))

    def _schedule_answer(self, call_id: object, answer: Any, error: Exception | None) -> None:
        self.call_soon(partial(self._on_answer, call_id, answer, error))

    def _on_answer(self, call_id: object, answer: Any, error: Exception | None) -> None:
        if error is not None:
            self._end(self.died_error(error))
            return
        then = self._pending.pop(call_id, None)
        if then is not None:
            then(self.decoded(answer))

    def _end(self, error: Exception) -> None:
        if self.ended_by is not None:
            return
        with self._lock:
            self.ended_by = error
            for event in self._waiting:
                event.set()
        coordinator = self._coordinator()
        if coordinator is not None:
            coordinator.connection_lost(error)
        pending, self._pending = self._pending, {}
        for then in pending.values():
            then(None)
