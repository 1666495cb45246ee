"""Several web workers, one model: ``uvicorn --workers 4`` in front, one process with it behind.

    pip install '.[service]'
    python examples/service_workers.py --port 8000 --workers 4

    curl -d '[1, 2, 3]' http://127.0.0.1:8000/score
    curl http://127.0.0.1:8000/metrics

How a request flows::

    client ──► web worker 1 ─┐
    client ──► web worker 2 ─┼─► Batcher ──► model, once for all of them
    client ──► web worker 3 ─┤    (in the process that this command starts)
    client ──► web worker 4 ─┘

* A web worker parses and answers requests, which holds the GIL. So there are several, each a
  process of its own. The model, and the memory that it takes, is there once.
* The process with the model shares its ``Batcher`` under a name. Each web worker finds it by that
  name, and calls it as if it were its own. Requests of all workers join the same batches.
* A client that hangs up gives up its place in the batch. A web worker that dies takes its own
  requests with it, and no others; uvicorn starts another one.
* ``/metrics`` has the numbers of the batcher, so it says the same whichever worker answers.
* Ctrl-C and SIGTERM end the web workers first. The batcher answers all that they had begun.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
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
NAME = "SCORE_BATCHER"
"""The environment variable that tells the web workers the name of the batcher."""


class Model:
    """A model that takes as long for one row as for many; its score is the sum of the row."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, rows: list[Any]) -> list[Any]:
        time.sleep(self.seconds)
        totals = np.stack(rows).sum(axis=1)
        # An error in one row reaches the client of that row alone.
        return [
            float(total) if np.isfinite(total) else ValueError("the score is not a number")
            for total in totals
        ]


# What a web worker does. uvicorn imports this module in each of them.


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
            score = await request.state.score(row)
        return JSONResponse({"score": score, "worker": os.getpid()})
    except aioqueue.QueueFull:
        message, status = "too many requests are waiting", 503
    except TimeoutError:
        message, status = "it takes too long", 504
    except ValueError as error:
        message, status = str(error), 422
    except (aioqueue.QueueClosedError, aioqueue.WorkerDiedError):
        message, status = "the model is not there", 503
    return JSONResponse({"error": message}, status_code=status)


async def metrics(request: Request) -> Response:
    """``GET /metrics``, for Prometheus."""
    page = await asyncio.to_thread(generate_latest, request.state.registry)
    return Response(page, headers={"Content-Type": CONTENT_TYPE_LATEST})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    score = await asyncio.to_thread(aioqueue.connect, os.environ[NAME], 30)
    registry = CollectorRegistry()
    registry.register(BatcherCollector(score))
    yield {"score": score, "registry": registry}


app = Starlette(
    routes=[Route("/score", answer, methods=["POST"]), Route("/metrics", metrics)],
    lifespan=lifespan,
    middleware=[Middleware(CancelOnDisconnect)],
)


# What the process with the model does.


async def serve(options: argparse.Namespace) -> None:
    """Share the batcher, and run the web server for as long as there is no signal."""
    queue = aioqueue.FIFOQueue(options.capacity)
    async with aioqueue.Batcher(
        Model(options.model_ms / 1000),
        options.max_batch,
        options.max_wait_ms / 1000,
        queue=queue,
        on_full="refuse",
        name="score",
    ) as score:
        name = f"score-{os.getpid()}"
        score.share(name=name)
        await run_server(options, name)
    counts = score.statistics()
    print(f"answered {counts.answered} of {counts.requests} requests", flush=True)


async def run_server(options: argparse.Namespace, name: str) -> None:
    """Run ``uvicorn --workers N`` until a signal comes, or it ends by itself."""
    server = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "uvicorn", f"{Path(__file__).stem}:app"],
        *["--app-dir", str(Path(__file__).parent), "--log-level", "warning"],
        *["--host", "127.0.0.1", "--port", str(options.port), "--workers", str(options.workers)],
        env={**os.environ, NAME: name},
        stdin=subprocess.DEVNULL,
    )
    loop = asyncio.get_running_loop()
    ended = asyncio.create_task(server.wait())

    def stop() -> None:
        if server.returncode is None:
            server.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    print(f"serving on 127.0.0.1:{options.port}", flush=True)
    await ended


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Several web workers, one model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--port", type=int, default=8000)
    add("--workers", type=int, default=4, help="web workers")
    add("--capacity", type=int, default=256, help="requests that may wait")
    add("--max-batch", type=int, default=32, help="requests per batch")
    add("--max-wait-ms", type=float, default=5.0, help="how long a batch waits for more")
    add("--model-ms", type=float, default=10.0, help="how long the model takes for a batch")
    asyncio.run(serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
