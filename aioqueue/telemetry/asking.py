"""Asking another process for an explanation, and saying clearly why there is none."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from aioqueue.errors import AioQueueError
from aioqueue.telemetry.asked import PREPARE, socket_of

__all__ = ("CannotAskError", "add_command", "ask", "state_of")

_LONGEST = 86_400.0  # seconds

_EXPLAIN = """\
Asks a running process who waits for whom, since when, and for what in the end: queues, workers and
the items that they are at, with the lines of code where they are. The process goes on meanwhile.

It must have been prepared: by aioqueue.explain_on_signal(), or by AIOQUEUE_EXPLAIN=1 in the
environment in which it was started.
"""

_STATES = {
    "T": "is stopped (SIGSTOP): `kill -CONT {pid}` lets it go on",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a disk or a network file system",
    "Z": "has ended, and its parent has not noticed yet",
}


class CannotAskError(AioQueueError):
    """A process cannot be asked; the message says why, and what would help."""


def ask(pid: int, timeout: float) -> str:
    """Ask a process why it waits.

    Args:
        pid: of the process.
        timeout: seconds to wait for the answer.

    Raises:
        CannotAskError: there is no such process, it is not ours, is not prepared, or does not
            answer.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise CannotAskError("processes cannot be asked on this system, which has no Unix sockets")
    uid = _owner_of(pid)
    path = socket_of(pid, uid)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
            return _all_of(connection)
        except (FileNotFoundError, ConnectionRefusedError):
            _not_prepared(pid, path)
        except PermissionError:
            _not_permitted(pid, uid)
        except TimeoutError:
            _no_answer(pid, timeout)


def _all_of(connection: socket.socket) -> str:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    if not parts:
        raise CannotAskError("the process has ended while it was asked")
    return b"".join(parts).decode("utf-8", "replace")


def _owner_of(pid: int) -> int:
    """The user that a process belongs to, who must be us (or we are root).

    Raises:
        CannotAskError: there is none, or it is somebody else's.
    """
    own = os.getuid()
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise CannotAskError(f"there is no process {pid}") from None
    except PermissionError:
        _not_permitted(pid, None)
    proc = Path(f"/proc/{pid}")
    return proc.stat().st_uid if proc.exists() else own


def _not_permitted(pid: int, uid: int | None) -> NoReturn:
    who = "another user" if uid is None else f"user {uid}"
    raise CannotAskError(f"process {pid} belongs to {who}: ask as that user, or as root")


def _not_prepared(pid: int, path: Path) -> NoReturn:
    raise CannotAskError(
        f"process {pid}{_command_of(pid)} is not prepared to be asked: call"
        f" aioqueue.explain_on_signal() in it, or start it with {PREPARE}=1 in its environment"
        f" (looked for {path})"
    )


def _no_answer(pid: int, timeout: float) -> NoReturn:
    state = state_of(pid)
    why = _STATES.get(state, "may be within a call that holds the GIL").format(pid=pid)
    raise CannotAskError(f"process {pid} has not answered within {timeout:g} s: it {why}")


def state_of(pid: int) -> str:
    """What Linux says of a process, in one letter; empty if that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace").strip()
    return f" ({text[:60]}{'...' if len(text) > 60 else ''})" if text else ""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain PID`` to the commands of a program."""
    parser = commands.add_parser(
        "explain",
        help="why does it hang? asks a running process",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pid", type=_pid, metavar="PID", help="of the process")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for its answer (default: 10)",
    )
    parser.set_defaults(do=lambda given: _show(given.pid, given.timeout, parser.prog))


def _show(pid: int, timeout: float, program: str) -> int:
    """Print the answer; returns the exit status."""
    try:
        sys.stdout.write(ask(pid, timeout) + "\n")
    except CannotAskError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def _pid(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected the number of a process")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of seconds > 0")
    return seconds
