"""`connect`: find what another process of this user shares, by its name."""

from __future__ import annotations

import os
import pickle
import select
from time import monotonic
from typing import Any

from aioqueue.base.arguments import checked_seconds
from aioqueue.base.public_names import World
from aioqueue.errors import WorkerDiedError
from aioqueue.sharing import addresses, frames
from aioqueue.sharing.connection import connection_to
from aioqueue.sharing.owner import Address, running_server
from aioqueue.worlds.waker import in_event_loop


def connect(name: str, timeout: float | None = None) -> Any:
    """Return what a process of this user shares by a name, for coroutines.

    ``queue.share(name="jobs")`` in one process, ``aioqueue.connect("jobs")`` in another: the result
    is a handle of that queue; see `AsyncQueue.share`. The same goes for a `Latest`, a
    `Coordinator`, a `Batcher` and a `RolloutQueue`. The process that shares it may be a parent, or
    any other one of the same user on this machine that has the same folder for temporary files.

    Args:
        name: the name.
        timeout: how many seconds to wait at most until something is shared by that name; ``None``
            does not wait. A thread whose event loop is running must not wait: use
            ``await asyncio.to_thread(aioqueue.connect, name, timeout)``.

    Returns:
        The async face of the object; in the process that shares it, the object itself.

    Raises:
        LookupError: nobody shares anything by that name, or not within the timeout.
        InvalidArgumentError: the name has characters that none can have, or the timeout is not a
            number of seconds >= 0.
        RuntimeError: the call would block a thread whose event loop is running.
        OSError: this system has no Unix sockets, or another user has access to the folder.
    """
    return _connected(name, timeout, "aio")


def connect_blocking(name: str, timeout: float | None = None) -> Any:
    """Return what a process of this user shares by a name, for threads.

    ``queue.share(name="jobs")`` in one process, ``sync.connect("jobs")`` in another: the result is
    a handle of that queue; see `BlockingQueue.share`. The same goes for a `Latest`, a
    `Coordinator`, a `Batcher` and a `RolloutQueue`. The process that shares it may be a parent, or
    any other one of the same user on this machine that has the same folder for temporary files.

    Args:
        name: the name.
        timeout: how many seconds to wait at most until something is shared by that name; ``None``
            does not wait.

    Returns:
        The blocking face of the object; in the process that shares it, the object itself.

    Raises:
        LookupError: nobody shares anything by that name, or not within the timeout.
        InvalidArgumentError: the name has characters that none can have, or the timeout is not a
            number of seconds >= 0.
        RuntimeError: the call would block a thread whose event loop is running.
        OSError: this system has no Unix sockets, or another user has access to the folder.
    """
    return _connected(name, timeout, "sync")


connect_blocking.__name__ = connect_blocking.__qualname__ = "connect"
connect.__module__, connect_blocking.__module__ = "aioqueue", "aioqueue.sync"


def _connected(name: str, timeout: float | None, world: World) -> Any:
    name = addresses.checked_name(name)
    if timeout is not None:
        timeout = checked_seconds(timeout, "timeout")
    last_owner = addresses.last_owner(name)  # before what a killed process has left is removed
    found = _face(name, world)
    if found is None and timeout:
        if in_event_loop():
            raise RuntimeError(
                "connect would have to wait, and this thread's event loop is running: use"
                f" `await asyncio.to_thread(aioqueue.connect, {name!r}, {timeout:g})`"
            )
        found = _face_within(name, world, timeout)
    addresses.remove_stale_files(addresses.folder())
    if found is None:
        waited = f" within {timeout:.4g} s" if timeout else ""
        killed = f"; process {last_owner}, which did, was killed" if last_owner else ""
        raise LookupError(
            f"nobody shares anything as {name!r}{waited}{killed} (the names of this user are in"
            f" {addresses.folder()})"
        )
    return found[0]


def _face(name: str, world: World) -> tuple[Any] | None:
    """Return the face of what has a name now, in a tuple; ``None`` if nothing has."""
    place = addresses.find_name(name)
    if place is None:
        return None
    address, thing = Address(*place[0]), place[1]
    server = running_server()
    try:
        if server is not None and server.address == address:
            make, arguments = server.service(thing).pickled(world)
        else:
            body = connection_to(address).request(thing, frames.DESCRIBE, world.encode())
            make, arguments = pickle.loads(body)
    except WorkerDiedError:
        return None  # it has ended just now
    return (make(*arguments),)


def _face_within(name: str, world: World, timeout: float) -> tuple[Any] | None:
    """Wait until something has a name; the folder reports each change."""
    deadline = monotonic() + timeout
    with addresses.changes(addresses.folder()) as descriptor:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            found = _face(name, world)  # after the watch has begun, so that no change is missed
            left = deadline - monotonic()
            if found is not None or left <= 0:
                return found
            if poll.poll(left * 1000):
                try:
                    os.read(descriptor, 65536)
                except OSError:
                    pass  # kqueue: the event was taken by the poll
