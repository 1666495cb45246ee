"""A client that hangs up cancels its request: with ASGI messages, and with a real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aioqueue
from aioqueue.asgi import CancelOnDisconnect
from tests.kit.worlds import PATIENCE, spin_until

GET = {"type": "http.request", "body": b"", "more_body": False}
DISCONNECTED = {"type": "http.disconnect"}
HTTP: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}


def same(values: list[int]) -> list[int]:
    return values


class Client:
    """One client, as an ASGI server presents it.

    Args:
        *messages: what it sends before it waits.
    """

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.read = 0
        self.sent: list[Any] = []
        self.has_left = anyio.Event()

    async def receive(self) -> dict[str, Any]:
        if self.read < len(self.messages):
            self.read += 1
            return self.messages[self.read - 1]
        await self.has_left.wait()
        return DISCONNECTED

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, app: Any) -> None:
        wrapped: Any = CancelOnDisconnect(app)
        await wrapped(HTTP, self.receive, self.send)


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a coroutine function under asyncio, and under trio."""
    if request.param == "trio":
        pytest.importorskip("trio")

    async def limited(body: Any) -> Any:
        with anyio.fail_after(PATIENCE):
            return await body()

    return lambda body: anyio.run(limited, body, backend=request.param)


def test_a_hang_up_cancels_the_call_of_a_batcher(run: Callable[..., Any]) -> None:
    """The other calls of the batch get their answers."""

    async def body() -> None:
        ended: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            try:
                answer = await batcher(7)
            except BaseException as error:
                ended.append(type(error).__name__)
                raise
            await send(START)
            await send({"type": "http.response.body", "body": b"%d" % answer})

        clients = [Client(GET) for _ in range(3)]
        async with aioqueue.Batcher(same, 3, 3600) as batcher, anyio.create_task_group() as group:
            for client in clients[:2]:
                group.start_soon(client.ask, app)
            while batcher.statistics().requests < 2:
                await anyio.lowlevel.checkpoint()
            clients[0].has_left.set()
            while batcher.statistics().cancelled < 1:
                await anyio.lowlevel.checkpoint()
            group.start_soon(clients[2].ask, app)
            group.start_soon(batcher, 8)  # fills the batch
        assert ended in (["CancelledError"], ["Cancelled"])
        assert [client.sent[0]["status"] for client in clients] == [499, 200, 200]
        assert [len(client.sent) for client in clients] == [2, 2, 2]
        assert batcher.statistics().batch_sizes == {3: 1}

    run(body)


def test_answered_requests_are_not_cancelled(run: Callable[..., Any]) -> None:
    """Background tasks of a framework continue after the response."""

    async def body() -> None:
        client = Client(GET)
        done: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            await send({"type": "http.response.body", "body": b"2"})
            client.has_left.set()
            assert await receive() == GET
            assert await receive() == DISCONNECTED
            assert await receive() == DISCONNECTED  # each time, as servers say it
            done.append("background")

        await client.ask(app)
        assert done == ["background"]
        assert len(client.sent) == 3

    run(body)


def test_a_stream_ends_in_the_middle(run: Callable[..., Any]) -> None:
    async def body() -> None:
        client = Client(GET)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            while True:
                await send({"type": "http.response.body", "body": b"1", "more_body": True})
                client.has_left.set()
                await anyio.lowlevel.checkpoint()

        await client.ask(app)
        assert len(client.sent) >= 2
        assert {one.get("status", 200) for one in client.sent} == {200}

    run(body)


def test_a_large_request_is_read_on_demand(run: Callable[..., Any]) -> None:
    """At most one message is read ahead, and one more waits."""

    async def body() -> None:
        parts = [
            {"type": "http.request", "body": b"%d" % part, "more_body": part < 9}
            for part in range(10)
        ]
        client = Client(*parts)
        wants = anyio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await wants.wait()
            assert [await receive() for _ in range(10)] == parts
            client.has_left.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(client.ask, app)
            await anyio.wait_all_tasks_blocked()
            assert client.read == 2
            wants.set()

    run(body)


def test_failures_propagate_unchanged(run: Callable[..., Any]) -> None:
    class OwnError(Exception):
        pass

    async def body() -> None:
        async def fails(scope: Any, receive: Any, send: Any) -> None:
            raise OwnError("the application's")

        with pytest.raises(OwnError, match="the application's"):
            await Client(GET).ask(fails)

        async def broken() -> Any:
            raise OwnError("the server's")

        async def reads(scope: Any, receive: Any, send: Any) -> None:
            await receive()

        client = Client()
        client.receive = broken  # type: ignore[method-assign]
        with pytest.raises(OwnError, match="the server's"):
            await client.ask(reads)

    run(body)


def test_other_scopes_pass_through(run: Callable[..., Any]) -> None:
    async def body() -> None:
        seen: list[Any] = []

        async def app(*given: Any) -> None:
            seen.append(given)

        client = Client()
        wrapped: Any = CancelOnDisconnect(app)
        for kind in ("lifespan", "websocket"):
            await wrapped({"type": kind}, client.receive, client.send)
        assert [given[1:] for given in seen] == [(client.receive, client.send)] * 2

    run(body)
    with pytest.raises(aioqueue.InvalidArgumentError, match=r"^app: got 3; expected an ASGI"):
        CancelOnDisconnect(3)  # type: ignore[arg-type]


# A real server, with Starlette.


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    async with aioqueue.Batcher(same, 2, 3600) as batcher:
        app.batcher = batcher
        yield {"batcher": batcher}


async def answer(request: Any) -> Any:
    from starlette.responses import JSONResponse

    value = await request.json()
    return JSONResponse(await request.state.batcher(value))


@contextmanager
def serving() -> Iterator[tuple[Any, int]]:
    """A server in a thread: the application, and its port."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.routing import Route

    class ResponseMiddleware(BaseHTTPMiddleware):
        """Like a middleware of Starlette, it expects a response for each request."""

        async def dispatch(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    app = Starlette(
        routes=[Route("/", answer, methods=["POST"])],
        middleware=[Middleware(ResponseMiddleware), Middleware(CancelOnDisconnect)],
        lifespan=lifespan,
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            spin_until(lambda: server.started)
            yield app, listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@pytest.mark.slow
def test_a_real_server(caplog: pytest.LogCaptureFixture) -> None:
    """One of four clients hangs up; the others are answered, and nothing is logged."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    caplog.set_level(logging.WARNING)
    with serving() as (app, port):

        def connect(value: int) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("POST", "/", json.dumps(value))
            return connection

        leaving = connect(1)
        spin_until(lambda: app.batcher.statistics().requests == 1)
        leaving.close()
        spin_until(lambda: app.batcher.statistics().cancelled == 1)
        # With the one that has left, the next two would not share a batch.
        staying = [connect(2), connect(3)]
        assert [json.loads(one.getresponse().read()) for one in staying] == [2, 3]
        for one in staying:
            one.close()
        assert app.batcher.statistics().batch_sizes == {2: 1}
    assert not caplog.records
