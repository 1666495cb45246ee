"""Where shared objects are found: the private folder of a user, sockets in it, and names.

A process that can connect to an owner can run code as its user, since messages are pickles. So the
folder belongs to the user alone, and each end checks who is at the other one.

**Names.** The file of a name says where its object is. Its owner holds a lock on the file for as
long as it lives, so a file without a lock is what a killed process has left behind. The file
appears whole: it is written and locked under another name first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import IO, Any, Final

from aioqueue.errors import InvalidArgumentError
from aioqueue.system import posix

_SOCKET_SUFFIX: Final = ".share"
_NAME_SUFFIX: Final = ".name"
_DRAFT_SUFFIX: Final = ".draft"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+\Z")
_LONGEST_NAME: Final = 60

_BACKLOG: Final = 1024

_DRAFT_SECONDS: Final = 60.0
"""How long it takes at most to write the file of a name under another name."""

_ENDED: Final = ("Z", "X")
"""The states of a process that has ended, and that its parent has not asked about."""


def folder() -> Path:
    """Return the folder of this user, which is made if need be.

    Raises:
        PermissionError: another user has access to it.
        OSError: it cannot be made.
    """
    if missing := posix.missing(posix.UNIX_SOCKETS):
        raise OSError(f"this system cannot share objects between processes: it has no {missing[0]}")
    user = posix.current_user()
    found = Path(tempfile.gettempdir()) / f"aioqueue-{user}"
    with contextlib.suppress(FileExistsError):  # be it a link that leads nowhere
        found.mkdir(mode=0o700)
    posix.check_private_folder(found, user)
    return found


def listening_socket() -> tuple[socket.socket, str]:
    """Make the socket of this process; return it with its path.

    Raises:
        OSError: it cannot be made.
    """
    private = folder()
    remove_stale_files(private)
    path = private / f"{os.getpid()}-{os.urandom(4).hex()}{_SOCKET_SUFFIX}"
    listener = posix.listening_socket(path)
    listener.listen(_BACKLOG)
    return listener, str(path)


def connected_socket(path: str) -> socket.socket:
    """Connect to the socket of an owner, without waiting for it.

    Raises:
        PermissionError: another user may have made what is there.
        OSError: nobody listens there.
    """
    posix.check_private_socket(Path(path), posix.current_user())
    # It waits only if very many others are about to be accepted.
    connection = posix.connected_socket(Path(path), 10.0)
    try:
        if not is_trusted(connection):
            raise PermissionError(f"{path}: another user answers there")
    except BaseException:
        connection.close()
        raise
    return connection


def is_trusted(connection: socket.socket) -> bool:
    """Return whether a process of this user is at the other end, as far as the system knows."""
    try:
        return posix.peer_user(connection) in (None, posix.current_user())
    except OSError:
        return False


def remove_stale_files(private: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in private.glob(f"*{_SOCKET_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if not _is_alive(int(path.name.partition("-")[0])):
                path.unlink(missing_ok=True)
    for path in private.glob(f"*{_NAME_SUFFIX}"):
        with contextlib.suppress(OSError):
            _remove_if_stale(path)
    for path in private.glob(f".*{_DRAFT_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time() - path.stat().st_mtime > _DRAFT_SECONDS:
                path.unlink(missing_ok=True)


def remove_files_of(path: str) -> None:
    """Remove what an owner that was killed has left: its socket and its names.

    A connection may also end while the owner lives, for want of descriptors or by a message that
    it refuses. Then its socket stays: others connect to it.
    """
    with contextlib.suppress(OSError, ValueError, OverflowError):
        if not _is_alive(int(Path(path).name.partition("-")[0])):
            os.unlink(path)
    with contextlib.suppress(OSError):
        for name in Path(path).parent.glob(f"*{_NAME_SUFFIX}"):
            _remove_if_stale(name)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return posix.state_of(pid) not in _ENDED


class Name:
    """A name that this process has taken.

    Attributes:
        number: the object that has it.
    """

    def __init__(self, path: Path, file: IO[bytes], number: int) -> None:
        self.number = number
        self._path = path
        self._file = file

    def remove(self) -> None:
        """Give the name up."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def checked_name(name: Any) -> str:
    """Return a valid name.

    Raises:
        InvalidArgumentError: it is no string, or has other characters than a file name may have.
    """
    if not isinstance(name, str) or not _NAME.match(name) or name.strip(".") == "":
        raise InvalidArgumentError(
            f"name: got {name!r}; expected letters, digits, '-', '_' and '.'"
        )
    return name


def _path_of(private: Path, name: str) -> Path:
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[: _LONGEST_NAME - 17]}-{digest}"
    return private / f"{name}{_NAME_SUFFIX}"


def take_name(name: str, address: tuple[str, str, int], number: int) -> Name:
    """Take a name for an object of this process.

    Raises:
        InvalidArgumentError: another living process shares an object of that name.
        OSError: it cannot be noted.
    """
    private = folder()
    path = _path_of(private, name)
    content = json.dumps({"name": name, "address": list(address), "object": number}).encode()
    descriptor, draft = tempfile.mkstemp(_DRAFT_SUFFIX, ".", private)
    file: IO[bytes] = os.fdopen(descriptor, "wb", buffering=0)
    try:
        file.write(content)
        posix.lock_file(file, wait=False)
        while True:
            try:
                os.link(draft, path)
                break
            except FileExistsError:
                taken_by = _remove_if_stale(path)
                if taken_by is not None:
                    raise InvalidArgumentError(
                        f"name: {name!r} is taken: process {taken_by} shares an object of that name"
                    ) from None
    except BaseException:
        file.close()
        raise
    finally:
        os.unlink(draft)
    os.utime(private)  # wakes those who wait for the name
    return Name(path, file, number)


def _remove_if_stale(path: Path) -> int | None:
    """Remove the file of a name if its owner has ended; return the owner if it lives."""
    try:
        with path.open("rb") as file:
            try:
                posix.lock_file(file, wait=False)
            except BlockingIOError:
                owner = _content(file)
                pid = 0 if owner is None else int(owner["address"][2])
                # A process that was forked from the owner may still have the lock.
                if owner is None or _is_alive(pid):
                    return pid
            # Locked by us now, so no other process removes it; but it may have been replaced.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    path.unlink()
    except FileNotFoundError:
        pass
    return None


def _content(file: IO[bytes]) -> dict[str, Any] | None:
    file.seek(0)
    try:
        found: dict[str, Any] = json.loads(file.read())
    except ValueError:
        return None
    return found


def find_name(name: str) -> tuple[tuple[str, str, int], int] | None:
    """Return where the object of a name is; ``None`` if nobody shares one."""
    path = _path_of(folder(), name)
    if _remove_if_stale(path) is None:
        return None
    found = _read(path)
    if found is None:
        return None
    where, token, pid = found["address"]
    return (str(where), str(token), int(pid)), int(found["object"])


def last_owner(name: str) -> int:
    """Return the process that had a name and has ended without giving it up; 0 if none has."""
    found = _read(_path_of(folder(), name))
    return 0 if found is None else int(found["address"][2])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _content(file)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def changes(private: Path) -> Iterator[int]:
    """Watch a folder; the result is a descriptor that can be read once it has changed.

    Raises:
        OSError: this system cannot watch folders.
    """
    import ctypes

    select: Any = importlib.import_module("select")  # what it has depends on the system
    if hasattr(select, "kqueue"):
        queue = select.kqueue()
        watched = os.open(private, os.O_RDONLY)
        try:
            event = select.kevent(
                watched,
                select.KQ_FILTER_VNODE,
                select.KQ_EV_ADD | select.KQ_EV_CLEAR,
                select.KQ_NOTE_WRITE | select.KQ_NOTE_ATTRIB,
            )
            queue.control([event], 0)
            yield queue.fileno()
        finally:
            os.close(watched)
            queue.close()
        return
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        mask = 0x100 | 0x80 | 0x4  # created, moved here, attributes
        if library.inotify_add_watch(descriptor, os.fsencode(private), mask) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        yield descriptor
    finally:
        os.close(descriptor)
