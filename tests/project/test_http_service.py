"""A batching service under a real server: uvicorn in a process of its own, and clients on sockets.

Clients are threads with one connection each, which they keep. What the server says of itself is
read from its ``/metrics``.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.worlds import spin_until

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("uvicorn", "starlette", "prometheus_client")
CLIENTS = 24

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED),
        reason="the extra `service` (uvicorn, starlette, prometheus-client) is not installed",
    ),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that is heard"),
]


class Server:
    """The example, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        first = process.stdout.readline()
        assert first.startswith("serving on "), first
        self.address = first.split()[-1]

    def connect(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection(self.address, timeout=20))

    def metrics(self) -> dict[str, float]:
        with self.connect() as connection:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name: str, labels: str = "") -> float:
        return self.metrics()[f'aioqueue_batcher_{name}{{batcher="score"{labels}}}']

    def stop(self) -> str:
        """SIGTERM; returns what it says at its end."""
        self.process.send_signal(signal.SIGTERM)
        messages, errors = self.process.communicate(timeout=20)
        assert errors == ""
        # uvicorn hands the signal on once all is done.
        assert self.process.returncode in (0, -signal.SIGTERM)
        return messages


@contextmanager
def running(
    *arguments: str, program: str = "examples/http_service.py", port: int = 0
) -> Iterator[Server]:
    command = [sys.executable, program, "--port", str(port), *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


def ask(connection: http.client.HTTPConnection, row: Any) -> tuple[int, Any]:
    connection.request("POST", "/score", json.dumps(row))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


class Clients:
    """Threads that ask again and again, until the server takes no more requests."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stopping = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.after_the_signal = 0
        self.mistakes: list[str] = []
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def _run(self, client: int) -> None:
        with self.server.connect() as connection:
            self._ask_until_the_end(client, connection)

    def _ask_until_the_end(self, client: int, connection: http.client.HTTPConnection) -> None:
        for number in range(100_000):
            try:
                status, answer = ask(connection, [client, number, 1])
            except (ConnectionError, http.client.RemoteDisconnected) as error:
                # Not one request that the server has taken: it says so itself, see below.
                if not self.stopping.is_set():
                    self.mistakes.append(repr(error))
                return
            with self._lock:
                self.statuses[status] += 1
                self.after_the_signal += self.stopping.is_set()
            if answer != {"score": client + number + 1}:
                self.mistakes.append(f"{status}: {answer}")


@pytest.mark.slow
def test_sigterm_under_load_fails_no_request() -> None:
    with running("--model-ms", "30", "--max-batch", "8") as server:
        clients = Clients(server)
        for thread in clients.threads:
            thread.start()
        spin_until(lambda: clients.statuses[200] > 5 * CLIENTS)
        spin_until(lambda: server.metric("in_flight") > 0 and server.metric("waiting") > 0)
        clients.stopping.set()
        messages = server.stop()
        for thread in clients.threads:
            thread.join(20)
    assert clients.mistakes == []
    assert set(clients.statuses) == {200}
    assert clients.after_the_signal > 0
    found = re.search(r"answered (\d+) of (\d+) requests", messages)
    assert found is not None, messages
    assert int(found[1]) == int(found[2]) == clients.statuses[200]


@pytest.mark.slow
def test_overload_is_answered_at_once() -> None:
    with running("--model-ms", "300", "--max-batch", "1", "--capacity", "1") as server:
        statuses: list[int] = []

        def ask_once() -> None:
            with server.connect() as connection:
                statuses.append(ask(connection, [1, 2, 3])[0])

        threads = [threading.Thread(target=ask_once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        counts = Counter(statuses)
        assert set(counts) == {200, 503}
        assert server.metric("requests_total", ',outcome="refused"') == counts[503]
        assert server.metric("requests_total", ',outcome="answered"') == counts[200]
        assert f"answered {counts[200]} of {counts[200]} requests" in server.stop()


@pytest.mark.slow
def test_a_client_gets_the_error_of_its_request() -> None:
    with running("--model-ms", "1") as server, server.connect() as connection:
        assert ask(connection, [1, 2, 3]) == (200, {"score": 6})
        status, answer = ask(connection, [1, 2, float("nan")])
        assert (status, answer["error"]) == (422, "the score is not a number")
        status, answer = ask(connection, [1, 2])
        assert (status, answer["error"]) == (400, "got shape (2,); expected 3 numbers")
        assert ask(connection, "text")[0] == 400
        assert ask(connection, [2, 2, 3]) == (200, {"score": 7})
        assert server.metric("requests_total", ',outcome="failed"') == 1
        connection.close()
        assert "answered 2 of 3 requests" in server.stop()
