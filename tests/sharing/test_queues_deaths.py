"""A process that dies: what was on its way to it comes back, and nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import sync
from aioqueue.errors import OutOfRangeError, QueueClosedError, WorkerDiedError
from aioqueue.sharing import frames, owner
from aioqueue.sharing.connection import SharingConnection, connection_to
from aioqueue.sharing.memory import SharedMemory
from tests.kit.sharing import Child
from tests.kit.worlds import spin_until

Start = Callable[..., Child]


def connection_of(queue: Any) -> SharingConnection:
    found: SharingConnection = queue._machine.connection()
    return found


# Clients.


def wait_for_ever(queue: Any, n: int, pipe: Any) -> None:
    pipe.send("waits")
    queue.dequeue_many(n)


def test_a_killed_client_waits_no_more(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    killed = child(wait_for_ever, queue, 3, talks=True)
    killed.reported()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    queue.enqueue_many([1, 2])
    assert queue.statistics().claimed == 2
    killed.kill()
    assert queue.dequeue_many(2) == [1, 2]


def hold(queue: Any, pipe: Any) -> None:
    """Get answers, without a caller that runs on with them."""
    connection = connection_of(queue)
    note = connection.hold
    held: list[int] = []

    def hold_and_report(call: Any) -> None:
        note(call)
        held.append(call.number)
        if len(held) == 3:
            os.kill(os.getpid(), signal.SIGSTOP)  # before any caller runs on

    connection.hold = hold_and_report  # type: ignore[method-assign]

    async def main() -> None:
        tasks = [asyncio.ensure_future(queue.aio.dequeue()) for _ in range(3)]
        await asyncio.sleep(0)  # they begin
        await asyncio.sleep(0)  # what they have begun is sent when that round is over
        pipe.send("waits")
        threading.Event().wait()  # blocks the loop: no task runs on
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_what_a_client_has_not_taken_comes_back_in_order(child: Start) -> None:
    """A stopped client keeps what it was granted; when it dies, that is in front again."""
    queue = sync.FIFOQueue(10).share()
    stopped = child(hold, queue, talks=True)
    stopped.reported()
    spin_until(lambda: queue.statistics().waiting_dequeues == 3)
    queue.enqueue_many(range(5))
    spin_until(lambda: queue.statistics().granted == 3)
    assert queue.dequeue() == 3, "others go on"
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    stopped.kill()
    assert queue.dequeue_many(4) == [0, 1, 2, 4]


def die_before_the_message(queue: Any, is_acknowledged: bool) -> None:
    """Die after, or just before, the store that makes the hand-over, and before the message."""

    def acknowledge(self: SharedMemory, call: int) -> None:
        if is_acknowledged:
            store(self, call)
        os.kill(os.getpid(), signal.SIGKILL)

    store = SharedMemory.acknowledge
    SharedMemory.acknowledge = acknowledge  # type: ignore[method-assign]
    queue.dequeue()


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_the_store_is_the_transfer(child: Start, is_acknowledged: bool) -> None:
    queue = sync.FIFOQueue(10).share()
    queue.enqueue_many(["first", "second"])
    killed = child(die_before_the_message, queue, is_acknowledged)
    killed.wait()
    # The owner forgets the client first, and puts back what was under way after that.
    spin_until(lambda: not owner.server().clients and not queue.statistics().granted)
    assert queue.dequeue() == ("second" if is_acknowledged else "first")


def acknowledge_and_die(queue: Any) -> None:
    """Send an acknowledgement, and die before the owner has read it."""
    element = queue.dequeue()
    assert element == "first"
    connection_of(queue)._send_notes()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_client_has_sent_before_its_death_counts(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    queue.enqueue_many(["first", "second"])
    child(acknowledge_and_die, queue).wait()
    spin_until(lambda: not owner.server().clients)
    assert queue.dequeue() == "second"


def leave_a_fork_behind(queue: Any, pipe: Any) -> None:
    queue.size()
    pipe.send(fork_that_sleeps())
    queue.dequeue_many(3)


def fork_that_sleeps() -> int:
    pid = os.fork()
    if not pid:
        threading.Event().wait()
    return pid


def keep_sockets_in_forks(queue: Any, pipe: Any) -> None:
    # As in a fork that Python does not know of, such as one of a library.
    SharingConnection.close_inherited = lambda self: None  # type: ignore[method-assign]
    leave_a_fork_behind(queue, pipe)


def test_a_death_is_seen_though_a_fork_keeps_the_socket_open(child: Start) -> None:
    queue = sync.FIFOQueue(10).share()
    killed = child(keep_sockets_in_forks, queue, talks=True)
    fork = killed.reported()
    try:
        spin_until(lambda: queue.statistics().waiting_dequeues == 1)
        queue.enqueue(1)
        killed.kill()
        spin_until(lambda: not owner.server().clients)
        assert queue.dequeue() == 1
    finally:
        os.kill(fork, signal.SIGKILL)


def put_rows(queue: Any, pipe: Any) -> None:
    pipe.send("puts")
    queue.enqueue_many(range(5))


def test_whole_rows_of_a_killed_client_stay(child: Start) -> None:
    queue = sync.FIFOQueue(2).share()
    killed = child(put_rows, queue, talks=True)
    killed.reported()
    spin_until(lambda: queue.statistics().waiting_enqueues == 1 and queue.size() == 2)
    killed.kill()
    spin_until(lambda: not queue.statistics().waiting_enqueues)
    assert [queue.dequeue() for _ in range(2)] == [0, 1]
    assert queue.size() == 0


def send_half_a_frame(queue: Any) -> None:
    connection = connection_of(queue)
    queue.size()
    whole = frames.frame(frames.FIRST_OF_SERVICE + 1, queue._machine.thing, 99, bytes(100))
    connection.socket.socket.setblocking(True)
    connection.socket.socket.sendall(whole[:50])
    os._exit(0)


def test_a_frame_that_was_cut_off_is_dropped(child: Start) -> None:
    queue = sync.FIFOQueue(2).share()
    child(send_half_a_frame, queue).wait()
    spin_until(lambda: not owner.server().clients)
    assert queue.size() == 0


def leave_while_others_wait(queue: Any, how: str) -> None:
    threading.Thread(target=lambda: queue.dequeue_many(5), daemon=True).start()
    spin_until(lambda: queue.statistics().waiting_dequeues == 1)
    if how == "os._exit":
        os._exit(0)
    raise SystemExit


@pytest.mark.parametrize("how", ["os._exit", "SystemExit"])
def test_a_client_that_ends_takes_nothing_along(child: Start, how: str) -> None:
    queue = sync.FIFOQueue(5).share()
    leaving = child(leave_while_others_wait, queue, how)
    leaving.wait()
    spin_until(lambda: not owner.server().clients)
    queue.enqueue(1)
    assert queue.dequeue() == 1


# The owner.


def own(pipe: Any) -> None:
    """Share a queue; then do what is message."""
    queue = sync.FIFOQueue(2, name="jobs")
    pipe.send(queue.share())
    while True:
        message = pipe.recv()
        if message != "fork":
            return
        pipe.send(fork_that_sleeps())


def outcomes_of_waiting_calls(queue: Any, n: int, end: Callable[[], object]) -> list[Any]:
    """Let threads and tasks wait for elements, and for room; return their outcomes."""
    found: list[Any] = []

    def wait(call: Callable[[], Any]) -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    async def tasks() -> None:
        calls = (queue.aio.dequeue_many(5) for _ in range(n))
        found.extend(await asyncio.gather(*calls, return_exceptions=True))

    threads = [threading.Thread(target=wait, args=(lambda: queue.dequeue_many(5),))]
    threads += [threading.Thread(target=lambda: asyncio.run(tasks()))]
    threads += [threading.Thread(target=wait, args=(lambda: queue.wait_closed(),))]
    for thread in threads:
        thread.start()
    spin_until(lambda: queue.statistics().waiting_dequeues == n + 1)
    end()
    for thread in threads:
        thread.join()
    return found


def test_calls_that_wait_at_a_killed_owner(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    found = outcomes_of_waiting_calls(queue, 20, owning.kill)
    assert len(found) == 22
    for error in found:
        assert isinstance(error, WorkerDiedError)
        assert str(error) == (
            f"FIFOQueue 'jobs': the process that shares it (pid {owning.pid}) was killed by SIGKILL"
        )
        assert error.exitcode == -signal.SIGKILL
    with pytest.raises(WorkerDiedError, match="was killed by SIGKILL"):
        queue.size()
    assert "0 elements" in repr(queue)


def test_a_killed_owner_whose_fork_continues(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    queue.size()
    owning.pipe.send("fork")
    fork = owning.reported()
    try:
        (error, *_) = outcomes_of_waiting_calls(queue, 1, owning.kill)
        assert isinstance(error, WorkerDiedError)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_client_that_comes_after_the_owners_death(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    owning.kill()
    with pytest.raises(WorkerDiedError, match=f"pid {owning.pid}.* has ended"):
        queue.dequeue()
    assert not os.path.exists(queue._machine.address.path)


def own_by_name(name: str, pipe: Any) -> None:
    queue = sync.FIFOQueue(2)
    pipe.send(queue.share(name=name))
    pipe.recv()


def end_with_the_owner(queue: Any, pipe: Any) -> None:
    """End this process as soon as its callers hear of the owner's end."""
    ending: Any = SharingConnection
    ending._cut_off_all = lambda _: os._exit(0)
    queue.size()
    pipe.send("connected")
    queue.dequeue()


def test_clients_that_end_with_a_killed_owner_have_tidied_up(child: Start) -> None:
    name = f"tidied-{os.getpid()}"
    owning = child(own_by_name, name, talks=True)
    queue = owning.reported()
    client = child(end_with_the_owner, queue, talks=True)
    assert client.reported() == "connected"
    owning.kill()
    client.wait()
    path = Path(queue._machine.address.path)
    assert not path.exists()
    assert not list(path.parent.glob(f"{name}.*"))


def connect_to_another(name: str) -> None:
    sync.connect(name).enqueue(1)


@pytest.mark.parametrize("found", [True, False])
def test_connecting_removes_what_others_have_left(child: Start, found: bool) -> None:
    """Owners that were killed, without clients that would notice."""
    name = f"left-{os.getpid()}"
    owning = child(own_by_name, name, talks=True)
    path = Path(owning.reported()._machine.address.path)
    owning.kill()
    draft = path.with_name(f".left-{os.getpid()}.draft")
    fresh = path.with_name(f".fresh-{os.getpid()}.draft")
    for one in (draft, fresh):
        one.touch()
    os.utime(draft, (0, 0))
    if found:
        child(connect_to_another, shared_by_name()).result()
    else:
        with pytest.raises(LookupError):
            sync.connect(f"nobody-{os.getpid()}")
    assert not path.exists()
    assert not path.with_name(f"{name}.name").exists()
    assert not draft.exists()
    fresh.unlink()


def shared_by_name() -> str:
    name = f"living-{os.getpid()}"
    sync.FIFOQueue(2).share(name=name)
    return name


def test_an_owner_that_ends_in_order(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    found = outcomes_of_waiting_calls(queue, 20, lambda: owning.pipe.send("end"))
    kinds = [type(error) for error in found]
    assert kinds.count(OutOfRangeError) == 21
    assert found.count(None) == 1, [one for one in found if type(one) is not OutOfRangeError]
    with pytest.raises(OutOfRangeError, match="the process that shared it has ended"):
        queue.dequeue()
    with pytest.raises(QueueClosedError, match="the process that shared it has ended"):
        queue.enqueue(1)
    assert queue.state is aioqueue.QueueState.CLOSED
    queue.wait_closed()
    queue.close()


@pytest.mark.slow
def test_files_of_an_owner_that_takes_long_to_end_go_with_it(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    queue.size()
    address = queue._machine.address
    connection = connection_to(address)
    connection.socket.socket.shutdown(socket.SHUT_RDWR)  # as the owner's end does
    spin_until(lambda: connection.has_ended)
    assert Path(address.path).exists()
    owning.kill()
    spin_until(lambda: not Path(address.path).exists())


def test_an_enqueue_that_waits_as_the_owner_ends(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    errors: list[Any] = []

    def put() -> None:
        try:
            queue.enqueue_many(range(5))
        except QueueClosedError as error:
            errors.append(error.enqueued)

    thread = threading.Thread(target=put)
    thread.start()
    spin_until(lambda: queue.statistics().waiting_enqueues == 1)
    owning.pipe.send("end")
    thread.join()
    assert errors == [2]


def test_what_was_taken_before_the_owners_death_is_the_callers(child: Start) -> None:
    owning = child(own, talks=True)
    queue = owning.reported()
    queue.enqueue(np.arange(1 << 15))
    array = queue.dequeue()
    owning.kill()
    assert array.sum() == sum(range(1 << 15))


def descriptors() -> list[str]:
    """The sockets, watched processes and memory of this process; not the pipes to children."""
    found: list[str] = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(one).partition(":[")[0])
    return sorted(one for one in found if one != "pipe")


def test_a_connection_leaves_nothing_behind(child: Start) -> None:
    before, threads = descriptors(), threading.active_count()
    owning = child(own, talks=True)
    queue = owning.reported()
    queue.enqueue(np.arange(1 << 15))
    queue.dequeue()
    thread = connection_to(queue._machine.address)._thread
    owning.kill()
    thread.join()
    owning.end()
    # Those of an earlier test may have ended meanwhile.
    assert threading.active_count() <= threads
    assert not Counter(descriptors()) - Counter(before)


# Messages that are none.


def send_noise(address: Any) -> None:
    with socket.socket(socket.AF_UNIX) as noise:
        noise.connect(address.path)
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while noise.recv(1000):
            pass


@pytest.mark.filterwarnings("ignore")
def test_noise_ends_the_connection_it_comes_by(
    child: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue = sync.FIFOQueue(2).share()
    address = owner.server().address
    child(send_noise, address).result()
    assert "sends what is no frame" in caplog.text
    queue.enqueue(1)
    assert queue.dequeue() == 1


def claim_another_version(queue: Any) -> str:
    body = (frames.VERSION + 1).to_bytes(4, "little")
    connection = connection_of(queue)
    connection.socket.send(frames.HELLO, 0, 0, body)
    with pytest.raises(WorkerDiedError) as error:
        queue.size()
        queue.size()
    return str(error.value)


def test_another_version(child: Start, caplog: pytest.LogCaptureFixture) -> None:
    queue = sync.FIFOQueue(2).share()
    child(claim_another_version, queue).result()
    assert "need the same version of aioqueue" in caplog.text
