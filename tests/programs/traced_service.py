"""A web service over a `Batcher`: traces that lead from a request to its batch, clients that leave.

Eight clients ask for the length of a word. Two of them hang up before there is an answer. Each of
the others has a span, to which the span of its batch is linked, and the user that it came with.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar

import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import aioqueue
from aioqueue.asgi import CancelOnDisconnect

CLIENTS, LEAVING = 8, 2
user: ContextVar[str] = ContextVar("user")
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("lengths")


def lengths(words: list[str], contexts: list[Context]) -> list[str]:
    spans = [one.run(trace.get_current_span) for one in contexts]
    links = [trace.Link(span.get_span_context()) for span in spans]
    with tracer.start_as_current_span("batch", links=links):
        return [f"{one[user]}: {len(word)}" for word, one in zip(words, contexts, strict=True)]


async def answer(request: Request) -> JSONResponse:
    user.set(request.headers["user"])
    with tracer.start_as_current_span("request"):
        return JSONResponse(await request.state.lengths(await request.json()))


batchers: list[aioqueue.Batcher[str, str]] = []


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, object]]:
    async with aioqueue.Batcher(lengths, max_batch=CLIENTS - LEAVING, max_wait=60) as batcher:
        batchers.append(batcher)
        yield {"lengths": batcher}


app = Starlette(
    routes=[Route("/", answer, methods=["POST"])],
    middleware=[Middleware(CancelOnDisconnect)],
    lifespan=lifespan,
)


async def ask(port: int, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps("x" * number).encode()
    head = f"POST / HTTP/1.1\r\nHost: here\r\nUser: user {number}\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def until(number: int, name: str) -> None:
    while getattr(batchers[0].statistics(), name) < number:
        await asyncio.sleep(0.005)


async def main() -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    leaving = [await ask(port, number) for number in range(LEAVING)]
    await until(LEAVING, "requests")
    for _, writer in leaving:
        writer.close()
    await until(LEAVING, "cancelled")
    answers = []
    staying = [await ask(port, number) for number in range(LEAVING, CLIENTS)]
    for reader, writer in staying:
        answers.append(json.loads((await reader.read()).partition(b"\r\n\r\n")[2]))
        writer.close()
    print(answers == [f"user {number}: {number}" for number in range(LEAVING, CLIENTS)])
    server.should_exit = True
    await serving
    counts = batchers[0].statistics()
    print(f"answered {counts.answered}, cancelled {counts.cancelled}, {counts.batch_sizes}")


asyncio.run(main())
spans = exporter.get_finished_spans()
batch = next(one for one in spans if one.name == "batch")
requests = {one.context.span_id for one in spans if one.name == "request"}
linked = {link.context.span_id for link in batch.links}
print(f"linked {len(linked)} of {len(requests)} requests: {linked < requests}")
provider.shutdown()
