"""A batcher that other processes call.

A call is a request like those of the owner's own callers: it stands in the same line, counts in the
same statistics, and joins the same batches. Its value is pickled by its caller, and unpickled by
the worker that begins a batch with it; its result is pickled there, too. So a value that cannot be
unpickled, or a result that cannot be pickled, fails one call.

A result is not leased: it is worth nothing without its caller. If a client dies, its calls leave
the line, and the results of those in a batch are dropped.

**Contexts.** A `contextvars.Context` cannot be pickled. A function with a parameter ``contexts``
gets one for each call all the same: an empty one, with the trace and the baggage of the caller, if
both processes have OpenTelemetry.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from time import perf_counter
from typing import Any, Final

from aioqueue.batcher.rules import BatcherCore, Request
from aioqueue.core.attempts import DONE, FAILED, PENDING, Attempt, Put
from aioqueue.errors import QueueClosedError, QueueFull, add_note
from aioqueue.processes.failures import message_of_failure
from aioqueue.remote.failures import sendable
from aioqueue.sharing import frames
from aioqueue.sharing.memory import Parts, starts_as_bytes
from aioqueue.sharing.owner import Client, Server
from aioqueue.sharing.sealing import parts_of
from aioqueue.worlds.waker import apply_deferred, deliver

REQUEST: Final = frames.FIRST_OF_SERVICE
"""A call of the batcher: a head (see `packed_request`), and the pickled value."""
STATISTICS: Final = frames.FIRST_OF_SERVICE + 1
"""The answer is a `BatcherStatistics`."""

_LENGTH: Final = struct.Struct("<I")


# What is sent.


def packed_request(
    value: Any, priority: int | None, carrier: dict[str, str] | None, nbytes: int
) -> Parts:
    """Pickle a call: its value, and before it a head that the owner reads without unpickling.

    Raises:
        Exception: the value cannot be pickled.
    """
    head = json.dumps([priority, carrier, nbytes]).encode()
    data, buffers = parts_of(value)
    return b"".join((_LENGTH.pack(len(head)), head, data)), buffers


def carried_context() -> dict[str, str] | None:
    """Return the trace and the baggage of the caller, if it uses OpenTelemetry."""
    # Not imported here: a program that has not loaded it has no trace.
    propagate = sys.modules.get("opentelemetry.propagate") or (
        _loaded_propagate() if "opentelemetry.context" in sys.modules else None
    )
    if propagate is None:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


def _loaded_propagate() -> Any:
    try:
        from opentelemetry import propagate
    except ImportError:
        return None
    return propagate


def context_of(carrier: dict[str, str] | None) -> Context:
    """Return a context with the trace and the baggage of a caller."""
    context = Context()
    if carrier is not None:
        propagate = _loaded_propagate()
        if propagate is not None:
            from opentelemetry.context import attach

            context.run(attach, propagate.extract(carrier, context.run(_current_of_telemetry)))
    return context


def _current_of_telemetry() -> Any:
    from opentelemetry.context import get_current

    return get_current()


# The owner's side.


class RemoteRequest(Request):
    """A call of another process. Its value stays pickled until a batch begins with it.

    Attributes:
        failure: the message of the failure, once it has failed.
        put: its enqueue, while that waits for room.
    """

    __slots__ = (
        "_buffers", "_carrier", "_data", "_nbytes", "client", "failure", "number", "put",
    )  # fmt: skip

    is_sealed = True

    def __init__(
        self, core: BatcherCore, waker: _Waker, client: Client, number: int, head: Any, sealed: Any
    ) -> None:
        Attempt.__init__(self)
        self.host = core
        self.waker = waker
        self.is_accepted = False
        self.value = self.result = None
        self.context = _NO_CONTEXT
        self.began = perf_counter()
        self.client = client
        self.number = number
        self.failure: bytes | None = None
        self.put: Put | None = None
        _, self._carrier, self._nbytes = head
        self._data, self._buffers = sealed

    @property
    def nbytes(self) -> int:
        return int(self._nbytes)

    def open(self) -> None:
        data, buffers, self._data, self._buffers = self._data, self._buffers, b"", ()
        try:
            self.value = pickle.loads(data, buffers=buffers)
        except Exception as error:
            host = self.host
            add_note(error, f"the value of a call of {host} from {self.client} is unpickled here")
            raise
        if self.host.takes_contexts:  # type: ignore[attr-defined]
            self.context = context_of(self._carrier)

    def sealed(self, outcome: Any) -> Any:
        if not isinstance(outcome, BaseException):
            try:
                return parts_of(outcome)
            except Exception as error:
                add_note(error, f"the result of {self.host} cannot be pickled for {self.client}")
                outcome = error
        failure = outcome if isinstance(outcome, Exception) else RuntimeError(str(outcome))
        self.failure = message_of_failure(sendable(failure))
        return outcome


_NO_CONTEXT: Final = Context()


class _Waker:
    """Notes the requests that have been answered, and has the server's thread send the answers."""

    two_step = False

    def __init__(self, service: BatcherService) -> None:
        self._service = service
        self.answered: deque[RemoteRequest] = deque()

    def notify(self, attempt: Attempt, /) -> None:
        assert isinstance(attempt, RemoteRequest)
        self.answered.append(attempt)

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        if self.answered:
            self._service.server.call_soon(self._service.send_answers)
        return ()

    def is_dead(self) -> bool:
        return False


class _PutWaker:
    """Has the server's thread look at an enqueue that had to wait for room."""

    two_step = False

    def __init__(self, service: BatcherService, request: RemoteRequest) -> None:
        self._service, self._request = service, request

    def notify(self, attempt: Attempt, /) -> None:
        """There is only one."""

    def wake(self, *, from_anywhere: bool = False) -> Iterable[Attempt]:
        service, request = self._service, self._request
        service.server.call_soon(lambda: service.put_ended(request))
        return ()

    def is_dead(self) -> bool:
        return False


class BatcherService:
    """One shared batcher, as the owner's thread serves it.

    Args:
        server: the server of this process.
        core: the batcher.
    """

    def __init__(self, server: Server, core: BatcherCore) -> None:
        self.server = server
        self.label = str(core)
        self._core = core
        self._waker = _Waker(self)
        self._requests: set[RemoteRequest] = set()
        core.has_sealed = True

    def describe(self) -> Any:
        core = self._core
        return {
            "name": core.name,
            "max_batch": core.max_batch,
            "workers": core.workers,
            "where": core.where,
            "takes_contexts": core.takes_contexts,
            "has_priorities": core.has_priorities,
            "counts_bytes": core.aio.max_bytes is not None,
            "queue_kind": core.aio._core.kind,
        }

    def begin(self, client: Client, kind: int, number: int, body: memoryview) -> None:
        if kind == STATISTICS:
            client.answer(number, parts_of((self._core.state, self._core.statistics())))
            return
        if kind != REQUEST:
            raise frames.FrameError(f"a batcher has no call of kind {kind}")
        assert client.memory is not None
        data, buffers, blocks = client.memory.unpack(body)
        if blocks:
            client.send(frames.FREE, 0, 0, starts_as_bytes(blocks))
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        head = json.loads(bytes(data[_LENGTH.size : start]))
        request = RemoteRequest(
            self._core, self._waker, client, number, head, (bytes(data[start:]), buffers)
        )
        self._enqueue(request, self._core.element(request, head[0]))
        self._requests.add(request)
        client.calls[number] = request

    def _enqueue(self, request: RemoteRequest, element: Any) -> None:
        core = self._core
        queue = core.aio
        try:
            queue.enqueue_nowait(element)
            request.is_accepted = True
        except QueueFull:
            if core.refuses:
                raise core.full() from None
            # It waits for room in the same line as all others.
            put = request.put = Put(queue._core.to_row(element))
            deliver(queue._machine.begin(put, _PutWaker(self, request)))
        except QueueClosedError as closed:
            refusal = core.refusal()
            raise refusal from refusal.__cause__ or closed.__cause__

    def put_ended(self, request: RemoteRequest) -> None:
        """Look at an enqueue that waited for room, and may have ended."""
        put = request.put
        if put is None or put.state is PENDING:
            return
        request.put = None
        if put.state is DONE:
            request.is_accepted = True
        elif put.state is FAILED and self._forget(request):
            request.client.fail(request.number, self._core.refusal())

    def send_answers(self) -> None:
        """Send the outcomes of the requests that have been answered."""
        answered = self._waker.answered
        while answered:
            request = answered.popleft()
            if not self._forget(request):
                continue  # its caller has left
            if request.error is None:
                request.client.answer(request.number, request.result)
            elif request.failure is not None:
                request.client.send(frames.FAILED, 0, request.number, request.failure)
            else:  # one of ours: it was refused, or its worker has died
                assert isinstance(request.error, Exception)
                request.client.fail(request.number, request.error)

    def acknowledge(self, client: Client, number: int) -> None:
        """Do nothing: results are not leased."""

    def cancel(self, client: Client, number: int, body: memoryview) -> bytes:
        request = client.calls.get(number)
        if isinstance(request, RemoteRequest) and self._forget(request):
            self._leave(request)
        return b""

    def leave(self, client: Client) -> None:
        for request in [one for one in self._requests if one.client is client]:
            self._forget(request)
            self._leave(request)

    def finish(self) -> None:
        for request in list(self._requests):
            self._forget(request)
            self._leave(request)
            error = QueueClosedError(
                f"{self.label} has ended with its process", queue=self._core.aio.name
            )
            request.client.fail(request.number, error)

    def _forget(self, request: RemoteRequest) -> bool:
        """Note that a call needs no answer any more; return whether it needed one."""
        if request not in self._requests:
            return False
        self._requests.discard(request)
        request.client.calls.pop(request.number, None)
        return True

    def _leave(self, request: RemoteRequest) -> None:
        """End a call whose caller has left: its place is free for others."""
        core, put = self._core, request.put
        if put is not None:
            apply_deferred(core.aio._machine.withdraw, put, if_pending=True)
            request.put = None
            request.is_accepted = put.state is DONE
        core.leave(request)
