"""Frames on a socket: whole, in their order, whatever the kernel takes at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from aioqueue.sharing import frames, memory
from aioqueue.sharing.frames import HEAD, FrameError, FrameSocket
from aioqueue.sharing.memory import LARGE, SharedMemory, inline
from aioqueue.sharing.owner import ConnectedClient
from tests.kit.worlds import spin_until


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    ends = socket.socketpair()
    one, other = (FrameSocket(end) for end in ends)
    yield one, other
    one.close()
    other.close()


def received(end: FrameSocket) -> list[tuple[int, int, int, bytes]]:
    end.receive()
    found = []
    while (frame := end.next_frame()) is not None:
        kind, thing, call, body = frame
        found.append((kind, thing, call, bytes(body)))
        end.drop_frame()
    return found


def test_many_in_one_part(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    for call in range(5):
        assert one.send(16, 2, call, b"x" * call)
    assert received(other) == [(16, 2, call, b"x" * call) for call in range(5)]
    assert received(other) == []


def test_one_in_many_parts(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    whole = frames.frame(17, 1, 9, b"body") + frames.frame(18, 1, 10)
    found = []
    for byte in whole:
        one.socket.send(bytes((byte,)))
        found += received(other)
    assert found == [(17, 1, 9, b"body"), (18, 1, 10, b"")]


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 10_000_000])
def test_larger_than_the_kernel_takes(pair: tuple[FrameSocket, FrameSocket], size: int) -> None:
    one, other = pair
    body = os.urandom(size)
    assert not one.send(16, 1, 1, body)
    assert not one.send(16, 1, 2, b"after it")
    assert one.outgoing_bytes > 0
    found = []

    def both_came() -> bool:
        one.flush()
        found.extend(received(other))
        return len(found) == 2

    spin_until(both_came)
    assert found == [(16, 1, 1, body), (16, 1, 2, b"after it")]
    assert one.outgoing_bytes == 0
    assert not one.has_outgoing


def test_what_is_corked_goes_with_the_next_frame_and_before_it(
    pair: tuple[FrameSocket, FrameSocket],
) -> None:
    one, other = pair
    one.cork(frames.frame(16, 1, 1, b"corked"))
    one.cork(frames.frame(16, 1, 2))
    assert received(other) == []
    assert one.send_frames(frames.frame(16, 1, 3), frames.frame(3, 0, 0, b"note"))
    assert not one.has_corked
    assert received(other) == [
        (3, 0, 0, b"note"),
        (16, 1, 1, b"corked"),
        (16, 1, 2, b""),
        (16, 1, 3, b""),
    ]


def test_what_is_corked_is_not_overtaken(pair: tuple[FrameSocket, FrameSocket]) -> None:
    """Neither by a handler's frame, nor if the kernel has not taken what came before."""
    one, other = pair
    body = os.urandom(5_000_000)
    one.send(16, 1, 1, body)
    one.cork(frames.frame(16, 1, 2))
    with one._lock:  # as if a signal handler had interrupted `send`
        one.send(4, 1, 2)
    one.cork(frames.frame(16, 1, 3))
    one.send(4, 1, 3)
    found: list[tuple[int, int, int, bytes]] = []

    def all_came() -> bool:
        one.flush()
        found.extend(received(other))
        return len(found) == 5

    spin_until(all_came)
    assert found[0] == (16, 1, 1, body)
    order = [(kind, call) for kind, _, call, _ in found]
    assert order.index((16, 2)) < order.index((4, 2))
    assert order.index((16, 3)) < order.index((4, 3))
    assert one.outgoing_bytes == 0


def test_a_handler_that_sends_in_the_middle_of_a_send(
    pair: tuple[FrameSocket, FrameSocket],
) -> None:
    """Its frame does not land in the middle of the other one."""
    one, other = pair
    with one._lock:  # as if a signal handler had interrupted `send`
        assert not one.send(16, 1, 2, b"of the handler")
    assert one.send(16, 1, 1, b"next")
    assert sorted(call for _, _, call, _ in received(other)) == [1, 2]
    assert not one.has_outgoing


def test_the_end(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    one.send(16, 1, 1, b"last")
    one.close()
    assert received(other) == [(16, 1, 1, b"last")]
    with pytest.raises(EOFError):
        other.receive()
    assert other.send(16, 1, 1, b"to nobody"), "who receives finds the end"


def test_a_frame_that_is_too_long(pair: tuple[FrameSocket, FrameSocket]) -> None:
    one, other = pair
    one.socket.send(HEAD.pack(frames.LONGEST + 1, 16, 1, 1))
    other.receive()
    with pytest.raises(FrameError):
        other.next_frame()


# Shared memory.


def both_sides() -> tuple[SharedMemory, SharedMemory]:
    descriptor = memory.new_file()
    owners = SharedMemory(os.dup(descriptor), is_owner=True)
    return owners, SharedMemory(descriptor, is_owner=False)


def test_acknowledgements() -> None:
    owners, clients = both_sides()
    clients.acknowledge(5)
    assert owners.is_acknowledged(5)
    assert not owners.is_acknowledged(5 + memory.SLOTS)
    clients.acknowledge(5 + memory.SLOTS)
    assert not owners.is_acknowledged(5)
    owners.close()
    clients.close()
    clients.acknowledge(6)  # by a caller that runs on just then: nobody reads it
    assert not owners.is_acknowledged(6)


def test_both_sides_write_and_read() -> None:
    owners, clients = both_sides()
    small, large = os.urandom(100), os.urandom(LARGE)
    for writer, reader in ((owners, clients), (clients, owners)):
        body, blocks = writer.pack((b"pickle", [small, large]))
        assert len(body) < LARGE
        data, buffers, to_free = reader.unpack(memoryview(body))
        assert (bytes(data), buffers) == (b"pickle", [bytearray(small), bytearray(large)])
        assert to_free == blocks == memory.blocks_of(memoryview(body))
        assert not writer.is_empty
        writer.free(to_free)
        assert writer.is_empty
    owners.close()
    clients.close()


def test_what_does_not_fit_goes_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    owners, clients = both_sides()
    large = os.urandom(LARGE)
    owners.pack((b"", [large]))
    assert owners._allocator is not None
    monkeypatch.setattr(owners._allocator, "allocate", lambda size: None)
    body, blocks = owners.pack((b"pickle", [large]))
    assert blocks == ()
    assert body == inline((b"pickle", [large]))
    assert clients.unpack(memoryview(body))[1] == [bytearray(large)]


def test_a_block_outside_of_the_memory() -> None:
    owners, clients = both_sides()
    body, _ = owners.pack((b"", [os.urandom(LARGE)]))
    forged = body.replace(
        memory.starts_as_bytes(memory.blocks_of(memoryview(body))), b"\xff" * 6 + b"\0\0"
    )
    with pytest.raises(ValueError, match="outside of the shared memory"):
        clients.unpack(memoryview(forged))


def test_a_block_that_the_client_has_freed_is_not_freed_for_its_former_call() -> None:
    """A lease whose caller has read it may be given back while its block has another answer."""
    ends = socket.socketpair()
    server: Any = Mock()
    client = ConnectedClient(server, ends[0])
    client.memory = SharedMemory(memory.new_file(), is_owner=True)
    try:
        large = (b"", [bytes(LARGE)])
        first = client.answer(1, large)
        client.note_freed(first)
        second = client.answer(2, large)
        assert second == first, "the same place is used again"
        client.free_blocks(1, first)
        assert not client.memory.is_empty
        client.free_blocks(2, second)
        assert client.memory.is_empty
    finally:
        client.memory.close()
        client.peer.close()
        for end in ends:
            end.close()
