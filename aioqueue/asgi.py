"""A middleware for web services (Starlette, FastAPI): a client that hangs up cancels its request.

A server continues a request whose client has left, and computes an answer that nobody reads. For
a `Batcher` that is a place in a batch, lost. With `CancelOnDisconnect` the request is cancelled: a
call of a batcher that has not begun leaves its batch, and the `finally` blocks of the endpoint run.

It speaks ASGI, the interface between servers and frameworks (https://asgi.readthedocs.io). So it
imports none of them, and it works with all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

import anyio

from aioqueue import FIFOQueue, InvalidArgumentError, OutOfRangeError

__all__ = ("CancelOnDisconnect",)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_AHEAD: Final = 1
"""How many messages of a request are read ahead, to see whether its client hangs up."""


_CLIENT_CLOSED_REQUEST: Final = 499
"""The status that nginx has made the usual one for this. Other middleware, and logs, see it."""


class CancelOnDisconnect:
    """Cancels what a request does when its client hangs up. An ASGI middleware.

    Add it to an application of Starlette or FastAPI::

        app.add_middleware(CancelOnDisconnect)

    The endpoint is cancelled where it awaits, as by a cancel scope. A call of a `Batcher` whose
    batch has not begun is left out of it; a streamed response ends. A plain (`def`) endpoint runs
    on a thread, which cannot be cancelled: its result is dropped. A request that is cancelled
    before its response has begun gets the status 499, which middleware around this one may log.

    A client that leaves once its response is complete cancels nothing, so background tasks of the
    framework run on. Web sockets and the lifespan pass through unchanged.

    To see a client leave, the middleware reads its request one message ahead. While an endpoint has
    not yet read the rest of a large request, a hang-up is seen only when it reads on.

    Args:
        app: the ASGI application, or the rest of the middleware.

    Raises:
        InvalidArgumentError: the application cannot be called.
    """

    def __init__(self, app: Application) -> None:
        if not callable(app):
            raise InvalidArgumentError(f"app: got {app!r}; expected an ASGI application")
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; servers and frameworks call this."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _Request(receive, send)
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(request.read_ahead)
                with request.serving:
                    try:
                        await self.app(scope, request.receive, request.send)
                    except Exception as error:  # kept out of the group, which would wrap it
                        failure = error
                group.cancel_scope.cancel()
            if request.serving.cancelled_caught:
                await request.close()
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame: break the cycle


class _Request:
    """One request, between the server and the application."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.serving = anyio.CancelScope()  # around the application
        self._receive, self._send = receive, send
        self._messages = FIFOQueue[Message](_AHEAD)
        self._has_started = False
        self._is_answered = False

    async def read_ahead(self) -> None:
        """Read messages for the application, and cancel it when the client hangs up."""
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    break
                await self._messages.enqueue(message)
        except Exception as error:  # the application gets it where it reads
            self._messages.close(cause=error)
            return
        self._messages.close()
        if not self._is_answered:
            self.serving.cancel()

    async def receive(self) -> Message:
        try:
            return await self._messages.dequeue()
        except OutOfRangeError as end:
            if end.__cause__ is not None:
                raise end.__cause__ from None
            return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Do what the server's ``send`` does, and note the end of the response."""
        kind = message["type"]
        self._has_started = True
        is_last = kind == "http.response.body" and not message.get("more_body", False)
        if is_last or kind == "http.response.pathsend":
            self._is_answered = True  # first: from now on, servers report a disconnect
        await self._send(message)

    async def close(self) -> None:
        """Answer a request that has no response, with the reason. Only middleware reads it."""
        if self._has_started:
            return
        start = {"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []}
        with suppress(OSError):  # what servers may raise, as the client has left
            await self._send(start)
            await self._send({"type": "http.response.body", "body": b""})
