"""A fault of one client, or of one call: nobody else notices, and the owner goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import WorkerDiedError
from aioqueue.sharing import frames, owner
from aioqueue.sharing.addresses import connected_socket
from tests.kit.sharing import Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]


def send_no_frame(queue: Any) -> None:
    """End the own connection by a message that is none, and see how calls end."""
    connection = queue._machine.connection()
    queue.size()
    connection.socket.send(frames.HELLO, 0, 0, bytes(4))
    with pytest.raises(WorkerDiedError):
        queue.dequeue()


def put_by_name(name: str) -> None:
    sync.connect(name).enqueue("in")


def test_a_client_that_is_dropped_leaves_the_owners_socket(child: Start) -> None:
    name = f"dropped-{os.getpid()}"
    queue = sync.FIFOQueue(3).share(name=name)
    child(send_no_frame, queue).result()
    assert os.path.exists(owner.server().address.path)
    child(put_by_name, name).result()
    assert queue.dequeue() == "in"


def send_what_cannot_be_handled(address: Any) -> None:
    connection = connected_socket(address.path)
    connection.setblocking(True)
    hello = frames.frame(frames.HELLO, 0, 0, owner.hello_body())
    broken = frames.frame(frames.ACKNOWLEDGE, 0, 0, b"abc")
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(hello + broken + frames.frame(frames.DESCRIBE, 1, 5, bytes(70_000)) * 10)
        while connection.recv(1000):
            pass


def ask_when_told(queue: Any, pipe: Any) -> int:
    queue.size()
    pipe.send("connected")
    pipe.recv()
    size: int = queue.size()
    return size


@pytest.mark.filterwarnings("ignore")
def test_a_message_that_cannot_be_handled_drops_its_client_only(
    child: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue = sync.FIFOQueue(3).share()
    queue.enqueue(1)
    other = child(ask_when_told, queue, talks=True)
    assert other.says() == "connected"
    child(send_what_cannot_be_handled, owner.server().address).result()
    assert "could not be handled" in caplog.text
    other.pipe.send("ask")
    assert other.result() == 1
