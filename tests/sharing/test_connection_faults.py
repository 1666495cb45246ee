"""A fault of one client, or of one call: nobody else notices, and the owner goes on."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.core.attempts import Put
from aioqueue.errors import WorkerDiedError
from aioqueue.sharing import frames, memory, owner
from aioqueue.sharing.addresses import connected_socket
from aioqueue.sharing.connection import ImmediateCall, SharingConnection
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


@pytest.mark.slow
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


def ask_on_request(queue: Any, pipe: Any) -> int:
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
    other = child(ask_on_request, queue, talks=True)
    assert other.reported() == "connected"
    child(send_what_cannot_be_handled, owner.server().address).result()
    assert "could not be handled" in caplog.text
    other.pipe.send("ask")
    assert other.result() == 1


MOST = 1 << 20
"""How long a message may be in the tests of messages that are too long."""


def send_too_much(queue: Any) -> Any:
    """Make calls that are too long; return what they raise, and what is still counted as sent."""
    waiting = threading.Thread(target=queue.dequeue_many, args=(3,))
    waiting.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    errors: list[str] = []
    # The array goes through shared memory, and must be free there again.
    calls: tuple[Callable[[], object], ...] = (
        lambda: queue.enqueue(bytes(MOST + 1)),
        lambda: queue.enqueue((np.zeros(MOST), bytes(MOST))),
        lambda: queue.enqueue_many([bytes(MOST // 2 + n) for n in range(3)]),
    )
    for call in calls:
        with pytest.raises(aioqueue.InvalidArgumentError) as error:
            call()
        errors.append(str(error.value))
    machine = queue._machine
    counts = (machine._unanswered, len(machine._calls) - 1, machine._connection.memory.is_empty)
    queue.enqueue_many(["a", "b", "c"])
    waiting.join()
    return errors, counts


def test_a_call_that_is_too_long_fails_and_no_other(
    child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "LONGEST", MOST)
    queue = sync.FIFOQueue(10).share()
    errors, counts = child(send_too_much, queue).result()
    for error in errors:
        assert "bytes for one message to another process; expected at most 1,048,576" in error
    assert counts == (0, 0, True)
    assert queue.size() == 0


def take_too_much(queue: Any) -> list[Any]:
    for _ in range(3):
        with pytest.raises(aioqueue.InvalidArgumentError, match="fewer rows"):
            queue.dequeue_many(3)
    return [len(queue.dequeue()) for _ in range(3)]


def test_an_answer_that_is_too_long_fails_its_call_and_its_rows_go_back(
    child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "LONGEST", MOST)
    queue = sync.FIFOQueue(10).share()
    sizes = [MOST // 2, MOST // 2 + 1, MOST // 2 + 2]
    queue.enqueue_many([bytes(n) for n in sizes])
    assert child(take_too_much, queue).result() == sizes


def read_too_much(latest: Any) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match="one message to another process"):
        latest.get()


def zeros(sizes: list[int]) -> list[bytes]:
    return [bytes(one) for one in sizes]


def call_for_too_much(batcher: Any) -> Any:
    with pytest.raises(aioqueue.InvalidArgumentError, match="one message to another process"):
        batcher(bytes(MOST + 1))
    with pytest.raises(aioqueue.InvalidArgumentError, match="one message to another process"):
        batcher(MOST + 1)
    return batcher(3)


def test_a_value_or_a_result_that_is_too_long(
    child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "LONGEST", MOST)
    latest = sync.Latest(bytes(2 * MOST)).share()
    child(read_too_much, latest).result()
    made: Any = sync.Batcher(zeros)
    with made as batcher:
        batcher.share()
        assert child(call_for_too_much, batcher).result() == bytes(3)


@contextmanager
def descriptors_left(n: int) -> Iterator[None]:
    """Leave this process so many descriptors, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(n):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def size_of_on_request(queue: Any, pipe: Any) -> int:
    pipe.recv()
    pipe.send("asks")
    size: int = queue.size()
    return size


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("spare", range(7))
def test_an_owner_without_descriptors_welcomes_clients_later(
    child: Start, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served meanwhile."""
    queue = sync.FIFOQueue(3).share()
    queue.enqueue(1)
    old = child(ask_on_request, queue, talks=True)
    assert old.reported() == "connected"
    new = child(size_of_on_request, queue, talks=True)
    serving = owner.server()
    paused = threading.Event()
    pause = serving.call_later

    def note_pause(seconds: float, call: Callable[[], object]) -> None:
        pause(seconds, call)
        paused.set()

    monkeypatch.setattr(serving, "call_later", note_pause)
    with descriptors_left(spare):
        new.pipe.send("ask")
        assert new.reported() == "asks"
        spin_until(lambda: paused.is_set() or len(serving.clients) == 2)
        old.pipe.send("ask")
        assert old.result() == 1
    assert new.result() == 1


def connect_without_descriptors(queue: Any) -> list[str]:
    failures: list[str] = []
    warnings.simplefilter("error")
    for spare in range(11):
        with descriptors_left(spare):
            try:
                assert queue.dequeue() == 0
            except OSError as error:
                assert error.errno == errno.EMFILE
                failures.append(str(error))
            else:
                break
    assert queue.dequeue() == 1
    return failures


def test_a_client_without_descriptors_connects_later(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    queue.enqueue_many([0, 1])
    failures = child(connect_without_descriptors, queue).result()
    assert failures
    assert all("Too many open files" in one for one in failures)


def connect_twice(queue: Any) -> list[Any]:
    """Connect without a descriptor for the shared memory, and once more before that has ended."""
    begun, reconnected = threading.Event(), threading.Event()
    receive, begin = socket.recv_fds, SharingConnection.begin
    close = SharingConnection._close_descriptors

    def begin_first(connection: SharingConnection, *arguments: Any) -> None:
        begin(connection, *arguments)
        begun.set()

    def receive_none(*arguments: Any) -> Any:
        begun.wait()
        sockets.recv_fds = receive
        data, descriptors, flags, address = receive(*arguments)
        for one in descriptors:
            os.close(one)
        return data, [], flags, address

    def close_late(connection: SharingConnection) -> None:
        reconnected.wait()
        close(connection)

    connecting: Any = SharingConnection
    connecting.begin, connecting._close_descriptors = begin_first, close_late
    sockets: Any = socket
    sockets.recv_fds = receive_none
    with pytest.raises(OSError, match="Too many open files"):
        queue.dequeue()
    taken = [queue.dequeue(), queue.dequeue()]
    reconnected.set()
    return taken


def test_what_a_failed_connection_has_been_answered_goes_back_first(child: Start) -> None:
    """Before the next call of this process is begun: it gets that very element."""
    queue = sync.FIFOQueue(3).share()
    queue.enqueue_many([0, 1])
    assert child(connect_twice, queue).result() == [0, 1]


def put_and_forget(queue: Any) -> int:
    """Forget a call before its answer comes, as an exception of a signal handler may do."""
    machine = queue._machine
    connection = machine.connection()
    queue.size()
    kind, body, _ = machine._message(connection, Put(5), None, True)
    call = ImmediateCall(connection, machine.thing)
    connection.begin(call, kind, body)
    connection.forget(call)
    size: int = queue.size()
    return size


def test_an_answer_that_no_caller_waits_for_is_dropped(child: Start) -> None:
    queue = sync.FIFOQueue(3).share()
    assert child(put_and_forget, queue).result() == 1
    assert memory.blocks_of(memoryview(b"\1")) == ()
