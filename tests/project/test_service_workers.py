"""One model behind several web workers: ``uvicorn --workers 4`` in processes of its own.

Clients are threads with one connection each. What a worker is asked says how many requests the
batcher has answered, for all workers.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kit.worlds import spin_until
from tests.project import test_http_service
from tests.project.test_http_service import Server, ask

pytestmark = [*test_http_service.pytestmark, pytest.mark.slow]

WORKERS = 4
CLIENTS = 24


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    workers = ("--workers", str(WORKERS), *arguments)
    program = "examples/service_workers.py"
    with test_http_service.running(*workers, program=program, port=port) as server:
        spin_until(lambda: is_up(server))
        yield server


def is_up(server: Server) -> bool:
    try:
        with server.connect() as connection:
            return ask(connection, [1, 2, 3])[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class Clients:
    """Threads that ask again and again, each by new connections, so that all workers are asked."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_over = threading.Event()
        self.workers: Counter[int] = Counter()
        self.mistakes: list[str] = []
        self.broken = 0
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(20)

    def _run(self, client: int) -> None:
        number = 0
        while not self.is_over.is_set():
            number += 1
            try:
                with self.server.connect() as connection:
                    status, answer = ask(connection, [client, number, 1])
            except (OSError, http.client.HTTPException):
                with self._lock:
                    self.broken += 1
                continue
            with self._lock:
                self.workers[answer.pop("worker", 0)] += 1
                if (status, answer) != (200, {"score": client + number + 1}):
                    self.mistakes.append(f"{status}: {answer}")

    @property
    def answered(self) -> int:
        return self.workers.total()


def answered(server: Server) -> float:
    return server.metric("requests_total", ',outcome="answered"')


def test_requests_of_all_workers_join_the_same_batches() -> None:
    with running("--model-ms", "20") as server:
        before = answered(server)
        with Clients(server) as clients:
            spin_until(lambda: clients.answered > 20 * CLIENTS and len(clients.workers) == WORKERS)
        assert clients.mistakes == []
        assert clients.broken == 0
        # The same from each worker: whichever is asked counts the requests of all.
        counts = {answered(server) for _ in range(2 * WORKERS)}
        assert counts == {before + clients.answered}
        batches = server.metric("batch_size_count")
        assert clients.answered / batches > 2 * CLIENTS / WORKERS / 2
        messages = server.stop()
    found = re.search(r"answered (\d+) of (\d+) requests", messages)
    assert found is not None, messages
    assert int(found[1]) == int(found[2]) == before + clients.answered


def test_a_worker_that_is_killed_takes_its_requests_and_no_others() -> None:
    with running("--model-ms", "20") as server:
        with Clients(server) as clients:
            spin_until(lambda: len(clients.workers) == WORKERS and clients.answered > 5 * CLIENTS)
            victim = max(clients.workers, key=lambda worker: clients.workers[worker])
            os.kill(victim, signal.SIGKILL)
            at_its_death = clients.answered
            spin_until(lambda: clients.answered > at_its_death + 20 * CLIENTS)
        assert clients.mistakes == []
        assert 0 < clients.broken <= CLIENTS * WORKERS
        assert len(clients.workers) >= WORKERS
        metrics = server.metrics()
        in_flight = {name: value for name, value in metrics.items() if "waiting" in name}
        assert set(in_flight.values()) == {0}, in_flight
        server.stop()


def test_a_client_that_hangs_up_gives_up_its_place() -> None:
    with running("--model-ms", "400", "--max-batch", "1") as server:
        leaving: list[Any] = []
        for _ in range(3):
            connection = http.client.HTTPConnection(server.address, timeout=20)
            connection.request("POST", "/score", "[1, 2, 3]")
            leaving.append(connection)
        spin_until(lambda: server.metric("waiting") >= 1)
        for connection in leaving:
            connection.close()
        spin_until(lambda: server.metric("requests_total", ',outcome="cancelled"') >= 1)
        spin_until(lambda: server.metric("waiting") == 0)
        server.stop()
