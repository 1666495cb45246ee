"""A model behind HTTP: uvicorn and starlette in front, a `Batcher` behind, and a page of metrics.

    pip install '.[service]'
    python examples/http_service.py --port 8000

    curl -d '[1, 2, 3]' http://127.0.0.1:8000/score
    curl http://127.0.0.1:8000/metrics

* ``/score`` answers one row of numbers with its score. Rows that come at the same time are scored
  together, by one call of the model.
* A client that hangs up gives up its place in the batch: its request is cancelled.
* When more requests wait than the queue has room for, they are answered with 503 at once: a client
  that waits in vain is worse off than one that gets an error.
* On SIGTERM uvicorn accepts nothing more and lets the requests that it has be answered; then the
  lifespan ends, and with it the block of the batcher. None of these fails because of a deployment.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aioqueue
from aioqueue.asgi import CancelOnDisconnect
from aioqueue.prometheus import BatcherCollector

FEATURES = 3
PATIENCE = 5.0  # seconds; then the client gets 504

Model = Callable[[list[Any]], list[Any]]


def slow_sum(seconds: float) -> Model:
    """A model that takes as long for one row as for many; its score is the sum of the row."""

    def score(rows: list[Any]) -> list[Any]:
        time.sleep(seconds)
        totals = np.stack(rows).sum(axis=1)
        # An error in one row reaches the client of that row alone.
        return [
            float(total) if np.isfinite(total) else ValueError("the score is not a number")
            for total in totals
        ]

    return score


async def answer(request: Request) -> Response:
    """``POST /score``."""
    try:
        row = np.asarray(await request.json(), dtype="float64")
    except (ValueError, TypeError) as error:
        return JSONResponse({"error": f"not an array of numbers: {error}"}, status_code=400)
    if row.shape != (FEATURES,):
        message = f"got shape {row.shape}; expected {FEATURES} numbers"
        return JSONResponse({"error": message}, status_code=400)
    try:
        async with asyncio.timeout(PATIENCE):
            return JSONResponse({"score": await request.state.score(row)})
    except aioqueue.QueueFull:
        message, status = "too many requests are waiting", 503
    except TimeoutError:
        message, status = "it takes too long", 504
    except ValueError as error:
        message, status = str(error), 422
    return JSONResponse({"error": message}, status_code=status)


async def metrics(request: Request) -> Response:
    """``GET /metrics``, for Prometheus."""
    page = generate_latest(request.state.registry)
    return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def application(model: Model, capacity: int, max_batch: int, max_wait: float) -> Starlette:
    """The service, to be run by uvicorn or another server of ASGI."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        queue = aioqueue.FIFOQueue(capacity)
        async with aioqueue.Batcher(
            model, max_batch, max_wait, queue=queue, on_full="refuse", name="score"
        ) as score:
            registry = CollectorRegistry()
            registry.register(BatcherCollector(score))
            yield {"score": score, "registry": registry}
        counts = score.statistics()
        print(f"answered {counts.answered} of {counts.requests} requests", flush=True)

    routes = [Route("/score", answer, methods=["POST"]), Route("/metrics", metrics)]
    hang_up = Middleware(CancelOnDisconnect)
    return Starlette(routes=routes, lifespan=lifespan, middleware=[hang_up])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="A model behind HTTP.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--port", type=int, default=8000, help="0 for any that is free")
    add("--capacity", type=int, default=256, help="requests that may wait")
    add("--max-batch", type=int, default=32, help="requests per batch")
    add("--max-wait-ms", type=float, default=5.0, help="how long a batch waits for more")
    add("--model-ms", type=float, default=10.0, help="how long the model takes for a batch")
    options = parser.parse_args(arguments)
    app = application(
        slow_sum(options.model_ms / 1000),
        options.capacity,
        options.max_batch,
        options.max_wait_ms / 1000,
    )
    with socket.create_server(("127.0.0.1", options.port), backlog=2048) as listener:
        print(f"serving on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
