"""A service that answers live requests in batches, and a load test of it on loopback.

How a request flows::

    client ──socket──► connection ─┐             ┌─► model, on a thread of its own
    client ──socket──► connection ─┼─► Batcher ──┤   (one call per batch: up to 32 requests, or
    ...                            ─┘      ▲      │   what has come 5 ms after the first of them)
                                          └──────┴── a row of scores each

* A model takes hardly longer for 32 requests than for one. So every connection asks a ``Batcher``
  for the scores of its row, and the model is called with the rows that have come together: a full
  batch at once when many requests are waiting, a smaller one after 5 ms when few come.
* While the model computes, on its thread, the event loop goes on reading requests: under load the
  next batch is there when the model is free.
* The batcher's queue is bounded. When it is full, connections wait, and so, by way of TCP, do the
  clients. A failure of the model would reach the connections of that batch.

The load test opens connections that send a request, wait for the answer, think for a while and go
on. Every answer is compared with what the model says of that request alone::

    python examples/service.py                             # 64 clients, 3 seconds
    python examples/service.py --max-batch 1               # what it would be without batches
    python examples/service.py --clients 8 --think-ms 20   # few requests: batches of what has come
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

# The model has one thread. More of them, within one call, would fight the event loop for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

import aioqueue

Floats = NDArray[np.float32]

FEATURES, HIDDEN, CLASSES = 256, 512, 10
CAPACITY = 256
KNOWN_REQUESTS = 512
INTERRUPTED = 130  # exit status of a program that Ctrl-C has ended: 128 + SIGINT
GROUPS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, None))
BAR = 40


class Model:
    """Two hidden layers. What it computes does not matter here, only that it is real work."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
        self.layers: list[Floats] = [
            rng.normal(0, np.sqrt(2 / before), (before, after)).astype(np.float32)
            for before, after in pairwise(sizes)
        ]

    def scores(self, rows: Sequence[Floats] | Floats) -> Floats:
        """A score per class for each row."""
        features = np.asarray(rows)
        *hidden, last = self.layers
        for layer in hidden:
            features = np.maximum(features @ layer, 0)
        return features @ last


class Service:
    """Answers requests that come over sockets: rows of float32, for rows of float32.

    Args:
        scores: asked with one row, gives the row of its scores.
    """

    def __init__(self, scores: aioqueue.Batcher[Floats, Floats]) -> None:
        self._scores = scores
        self._connections: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its client closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                data = await reader.readexactly(4 * FEATURES)
                answer = await self._scores(np.frombuffer(data, "<f4"))
                writer.write(answer.astype("<f4").tobytes())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        except asyncio.CancelledError:
            pass  # the service is about to go
        finally:
            writer.close()
            self._connections.discard(task)

    async def disconnect(self) -> None:
        """End all connections."""
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


class LoadTest:
    """Clients that send requests, and what they see.

    Args:
        model: what the answers are compared with.
        clients: how many there are.
        think: seconds between an answer and the next request, on average.
        seed: of the requests and the pauses.
    """

    def __init__(self, model: Model, clients: int, think: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._inputs = self._rng.normal(size=(KNOWN_REQUESTS, FEATURES)).astype("<f4")
        self._expected = model.scores(self._inputs)
        self._clients = clients
        self._think = think
        self.seconds = 0.0
        self.latencies: list[float] = []
        self.wrong = 0

    async def run(self, port: int, seconds: float) -> None:
        """Send requests for some seconds."""
        began = perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._clients):
                    group.create_task(self._send_requests(port, began + seconds))
        finally:
            self.seconds = perf_counter() - began

    async def _send_requests(self, port: int, deadline: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while perf_counter() < deadline:
                await asyncio.sleep(self._rng.exponential(self._think))
                number = self._rng.integers(KNOWN_REQUESTS)
                sent = perf_counter()
                writer.write(self._inputs[number].tobytes())
                answer = np.frombuffer(await reader.readexactly(4 * CLASSES), "<f4")
                self.latencies.append(perf_counter() - sent)
                self.wrong += not np.allclose(answer, self._expected[number], atol=1e-3)
        finally:
            writer.close()
            await writer.wait_closed()


async def serve(scores: aioqueue.Batcher[Floats, Floats], test: LoadTest, seconds: float) -> None:
    """Run the service for as long as the load test takes."""
    async with scores:
        service = Service(scores)
        server = await asyncio.start_server(service.connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        print(f"serving on 127.0.0.1:{port}", flush=True)
        try:
            await test.run(port, seconds)
        finally:
            server.close()
            await service.disconnect()
            await server.wait_closed()


# What is shown.


def summary(batches: Counter[int], test: LoadTest) -> str:
    if not test.latencies:
        return "no request was answered"
    p50, p90, p99 = np.percentile(test.latencies, [50, 90, 99]) * 1000
    answered = len(test.latencies)
    calls = batches.total()
    return "\n".join(
        [
            f"answered         {answered:,} requests, {answered / test.seconds:,.0f} per second",
            f"latency          {p50:.1f} ms (half), {p90:.1f} ms (90 %), {p99:.1f} ms (99 %),"
            f" {max(test.latencies) * 1000:.1f} ms (the slowest)",
            f"model calls      {calls:,}, for {answered / max(calls, 1):.1f} requests on average",
            *histogram(batches),
            f"answers          {'all right' if not test.wrong else f'{test.wrong} WRONG'}",
        ]
    )


def histogram(sizes: Counter[int]) -> list[str]:
    """How many batches had how many requests."""
    lines = []
    counts = {
        group: sum(
            count
            for size, count in sizes.items()
            if group[0] <= size and (group[1] is None or size <= group[1])
        )
        for group in GROUPS
    }
    most = max([*counts.values(), 1])
    for (low, high), count in counts.items():
        if count:
            label = f"{low}" if low == high else f"{low}+" if high is None else f"{low} to {high}"
            bar = "#" * max(1, round(BAR * count / most))
            lines.append(f"  batches of {label:<9}{count:>7,}  {bar}")
    return lines


# The program.


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A service that answers in batches, and a load test of it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--clients", type=positive, default=64, help="connections that send requests")
    add("--seconds", type=seconds, default=3.0, help="how long")
    add("--think-ms", type=seconds, default=5.0, help="a client's pause, on average")
    add("--max-batch", type=positive, default=32, help="requests per batch")
    add("--max-wait-ms", type=seconds, default=5.0, help="how long a batch waits for more")
    add("--seed", type=int, default=7, help="of the model, the requests and the pauses")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; expected at least 1")
    return number


def seconds(text: str) -> float:
    """A duration, not negative."""
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"got {number}; expected at least 0")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    model = Model(options.seed)
    scores = aioqueue.Batcher(
        model.scores,
        options.max_batch,
        options.max_wait_ms / 1000,
        queue=aioqueue.FIFOQueue(max(CAPACITY, options.max_batch)),
        name="scores",
    )
    test = LoadTest(model, options.clients, options.think_ms / 1000, options.seed)
    status = 0
    try:
        asyncio.run(serve(scores, test, options.seconds))
    except* KeyboardInterrupt:
        status = INTERRUPTED
        print("interrupted")
    except* Exception as failures:
        status = 1
        traceback.print_exception(failures)
    print(summary(Counter(scores.statistics().batch_sizes), test), flush=True)
    return status or int(test.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
