"""What only POSIX systems have: Unix sockets, users, signal masks, and states of processes.

No other module of the core uses these. Features that need them import this module when they are
used, and say so on a system without them (`missing`). Worker processes have two further modules of
this kind, which start a fork server (`fork_server.client`) and run in it (`fork_server.server`).
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

ROOT: Final = 0
"""The user who may read everything."""

UNIX_SOCKETS: Final = ("socket.AF_UNIX", "os.getuid")
"""What Unix sockets in a folder of one user need."""

FORK_SERVER: Final = (
    "os.fork",
    "os.memfd_create",
    "os.waitid",
    "fcntl.F_SETSIG",
    "signal.pthread_sigmask",
    "socket.SCM_RIGHTS",
    *UNIX_SOCKETS,
)
"""What a fork server needs. Only Linux has all of it."""

_PEER: Final = struct.Struct("3i")  # Linux's struct ucred: pid, uid, gid
_LOCAL_PEERPID: Final = 2  # at level 0, on macOS
_GET_INFO: Final = 0xC000FF0B | 64 << 16  # PIDFD_GET_INFO, with a struct of 64 bytes
_INFO_BYTES: Final = 64
_INFO_MASK: Final = struct.Struct("<Q")
_INFO_EXIT: Final = 1 << 3
_EXIT_CODE: Final = struct.Struct("<i")
_EXIT_CODE_AT: Final = 60
_XUCRED: Final = struct.Struct("2I")  # the first fields of BSD's struct xucred: version, uid
_XUCRED_BYTES: Final = 76
_LOCAL_PEERCRED: Final = 1  # at level 0, on macOS and FreeBSD

_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
"""How many bytes the path of a Unix socket has at most."""

_PROBE_SECONDS: Final = 1.0

_OTHERS: Final = 0o077
"""The permissions of a file that belong to others than its owner."""


def missing(names: Collection[str]) -> tuple[str, ...]:
    """Return those of the names that this system's standard library does not have.

    Args:
        names: names with their modules, such as ``"os.fork"``.
    """
    return tuple(name for name in names if not _has(*name.split(".")))


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@contextmanager
def signals_blocked(signals: Collection[int]) -> Iterator[None]:
    """Block signals for whatever is started in this context, and for its children."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals(signals: Collection[int], restarting: int) -> None:
    """Let a process get signals from now on, on systems where they can be blocked.

    Args:
        signals: the signals.
        calls_go_on: the one of them after which interrupted system calls continue.
    """
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(restarting, False)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def file_without_name() -> int:
    """Return the descriptor of an empty file that is deleted with its last descriptor.

    Raises:
        OSError: there is no memory, or no descriptor left for it.
    """
    if hasattr(os, "memfd_create"):  # on Linux
        return os.memfd_create("aioqueue")
    with tempfile.TemporaryFile(prefix="aioqueue-") as file:
        return os.dup(file.fileno())


def lock_file(file: IO[bytes], *, wait: bool) -> None:
    """Lock a file for this process until it is closed.

    Raises:
        BlockingIOError: another process has it, and the caller does not wait.
    """
    import fcntl  # not available on Windows, where this module can be imported

    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_readable(source: Any, seconds: float) -> bool:
    """Return whether something, or the end, can be read within some time.

    Args:
        source: a descriptor, or an object with one. `select.select` would refuse descriptors above
            1023.
        seconds: how long to wait at most.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def check_private_folder(folder: Path, user: int) -> None:
    """Check that a folder is one, belongs to a user, and that no other user has access.

    Raises:
        PermissionError: it does not belong to the user alone.
        OSError: it cannot be looked at.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & _OTHERS:
        raise PermissionError(
            f"{folder}: got {_described(found)}; expected a folder that user {user} owns and nobody"
            " else has access to. Remove it, or set TMPDIR to a folder of your own"
        )


def check_private_socket(path: Path, user: int) -> None:
    """Check that a file is a socket of a user, in a folder of that user alone.

    Raises:
        PermissionError: another user may have made it.
        OSError: it cannot be looked at.
    """
    check_private_folder(path.parent, user)
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != user:
        raise PermissionError(
            f"{path}: got {_described(found)}; expected a socket that user {user} owns"
        )


def _described(found: os.stat_result) -> str:
    kinds = {stat.S_ISDIR: "folder", stat.S_ISLNK: "symbolic link", stat.S_ISSOCK: "socket"}
    kind = next((name for test, name in kinds.items() if test(found.st_mode)), "file")
    return f"a {kind} of user {found.st_uid} with permissions {stat.S_IMODE(found.st_mode):03o}"


def listening_socket(path: str | Path) -> socket.socket:
    """Make a socket that listens at a path, and that only this user may connect to.

    Raises:
        OSError: it cannot be made; if the path is too long, the message names TMPDIR.
    """
    check_length(path)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(os.fspath(path))
        os.chmod(path, 0o600)
        server.listen()
    except BaseException:
        server.close()
        raise
    return server


class PrivateListener(NamedTuple):
    """A socket that listens under an address for this process and its forks."""

    socket: socket.socket
    address: str
    folder: str | None
    """Where its file lies; ``None`` if it lies nowhere, so that no end of the process leaves it."""
    fd: int | None
    """What keeps the address."""


def private_listener() -> PrivateListener:
    """Make a socket that listens, if possible under an address that is in no folder.

    Linux finds a socket by a descriptor of its file, also once the file is removed. Without /proc
    it cannot: then there is a folder, which the caller removes.

    Raises:
        OSError: it cannot be made; if its path would be too long, the message names TMPDIR.
    """
    with ExitStack() as undo:
        folder = tempfile.mkdtemp(prefix="aioqueue-")
        undo.callback(_remove_quietly, os.rmdir, folder)
        path = os.path.join(folder, "listener")
        listener = undo.enter_context(listening_socket(path))
        undo.callback(_remove_quietly, os.unlink, path)
        fd = os.open(path, os.O_PATH)
        address = f"/proc/self/fd/{fd}"
        try:
            # Nobody else knows the address yet, so the next connection is this one.
            connected_socket(Path(address), _PROBE_SECONDS).close()
            listener.accept()[0].close()
        except OSError:
            os.close(fd)
            undo.pop_all()
            return PrivateListener(listener, path, folder, None)
        except BaseException:
            os.close(fd)
            raise
        os.unlink(path)
        os.rmdir(folder)
        undo.pop_all()
        return PrivateListener(listener, address, None, fd)


def remove_listener(folder: str | None) -> None:
    """Remove the folder of a `private_listener`, if it has one."""
    if folder is not None:
        _remove_quietly(os.unlink, os.path.join(folder, "listener"))
        _remove_quietly(os.rmdir, folder)


def _remove_quietly(remove: Callable[[str], None], path: str) -> None:
    with suppress(OSError):
        remove(path)


def connected_socket(path: Path, seconds: float) -> socket.socket:
    """Connect to a socket at a path.

    Args:
        path: the path.
        seconds: how long its calls wait at most.

    Raises:
        OSError: nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(seconds)
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def check_length(path: str | Path) -> None:
    """Check that a path in the folder for temporary files is not too long for a Unix socket.

    Raises:
        OSError: it is; the message names TMPDIR.
    """
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise OSError(
            f"TMPDIR: the folder for temporary files, {tempfile.gettempdir()!r}, has too long a"
            f" name for Unix sockets: the path of one has {length} bytes, and {_LONGEST_PATH} are"
            " possible. Set TMPDIR to a folder with a shorter name, such as /tmp"
        )


def peer_user(connection: socket.socket) -> int | None:
    """Return the user whose process is at the other end of a Unix socket; ``None`` if unknown."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(credentials)[1])
    if sys.platform == "darwin" or sys.platform.startswith("freebsd"):
        credentials = connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES)
        version, user = _XUCRED.unpack_from(credentials)
        return int(user) if version == 0 else None
    return None


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end of a Unix socket; 0 if the system does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(credentials)[0])
    if sys.platform == "darwin":
        with suppress(OSError):
            return connection.getsockopt(0, _LOCAL_PEERPID)
    return 0


def status_of_reaped(pidfd: int) -> int | None:
    """Return the exit status of a process that was reaped; ``None`` if the system does not know it.

    Linux keeps it for those who hold a *pidfd* (since 6.15).
    """
    with suppress(OSError, ImportError):
        import fcntl  # not available on Windows, where this module can be imported

        info = bytearray(_INFO_BYTES)
        _INFO_MASK.pack_into(info, 0, _INFO_EXIT)
        fcntl.ioctl(pidfd, _GET_INFO, info)
        if _INFO_MASK.unpack_from(info)[0] & _INFO_EXIT:
            return int(_EXIT_CODE.unpack_from(info, _EXIT_CODE_AT)[0])
    return None


def current_user() -> int:
    return os.getuid()


def user_of(pid: int) -> int:
    """Return the real user of a process; this one's if the system does not say (no /proc).

    Raises:
        ProcessLookupError: there is no such process.
        PermissionError: it belongs to another user.
        OverflowError: the number is too large.
    """
    os.kill(pid, 0)
    for line in _of_process(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return os.getuid()


def state_of(pid: int) -> str:
    """Return the state of a process on Linux, as one letter; empty if unknown."""
    words = _of_process(pid, "stat").rpartition(b")")[2].split()
    return words[0].decode() if words else ""


def command_of(pid: int) -> str:
    """Return the command line of a process on Linux; empty if unknown."""
    return b" ".join(_of_process(pid, "cmdline").split(b"\0")).decode("utf-8", "replace").strip()


def _of_process(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
