"""Ask another process for an explanation: ``python -m aioqueue explain PID``.

Anyone may make files in the folder for temporary files. So `ask` accepts an answer only from the
process's user: it checks the owner and the permissions of the folder and the socket, and, where the
system knows it, who is at the other end. An answer has bounds in size and time, and its control
characters are escaped.
"""

from __future__ import annotations

import argparse
import socket
import sys
from time import monotonic
from typing import Final, NoReturn

from aioqueue.display_text import in_safe_lines, on_one_line
from aioqueue.errors import AioQueueError
from aioqueue.telemetry.explain_socket import LONGEST_ANSWER, PREPARE, socket_of

__all__ = ("CannotAskError", "add_command", "ask")

_LONGEST: Final = 86_400.0  # seconds

_EXPLAIN: Final = """\
Shows why a running process waits: which callers wait, for what and for how long, and the root
cause, with queues, workers, their items and lines of code. The process keeps running.

The process must listen for requests: call aioqueue.explain_on_signal() in it, or start it with
AIOQUEUE_EXPLAIN=1 in its environment.
"""

_STATES = {
    "T": "is stopped (SIGSTOP); `kill -CONT {pid}` resumes it",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel for a disk or a network file system",
    "Z": "has ended, but its parent has not reaped it yet",
}


class CannotAskError(AioQueueError):
    """A process cannot be asked for an explanation; the message says why, and what would help."""


def ask(pid: int, timeout: float) -> str:
    """Return the explanation of another process, with its control characters escaped.

    Args:
        pid: the process.
        timeout: seconds to wait for the whole answer.

    Raises:
        CannotAskError: there is no such process, it belongs to another user, does not listen, or
            does not answer; or something that another user has made is in its place.
    """
    from aioqueue import posix  # only when used

    if posix.missing(posix.UNIX_SOCKETS):
        raise CannotAskError("this system has no Unix sockets, which `explain` needs")
    user = _user_of(pid)
    path = socket_of(pid, user)
    try:
        posix.check_length(path)
        posix.check_private_socket(path, user)
        with posix.connected_socket(path, timeout) as connection:
            peer = posix.peer_user(connection)
            if peer not in (None, user):
                raise PermissionError(f"{path}: user {peer} answers there")
            return in_safe_lines(_all_of(connection, monotonic() + timeout))
    except (FileNotFoundError, ConnectionRefusedError):
        _not_prepared(pid, str(path))
    except ConnectionError:
        raise CannotAskError(f"process {pid} has ended the connection") from None
    except TimeoutError:
        _no_answer(pid, timeout)
    except OSError as error:
        raise CannotAskError(
            f"process {pid} of user {user} cannot be asked: {on_one_line(str(error))}"
        ) from None


def _all_of(connection: socket.socket, deadline: float) -> str:
    answer = bytearray()
    while len(answer) <= LONGEST_ANSWER:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(65536)
        if not part:
            break
        answer += part
    if not answer:
        raise CannotAskError("the process ended before it answered")
    text = answer[:LONGEST_ANSWER].decode("utf-8", "replace")
    return text if len(answer) <= LONGEST_ANSWER else text + "\n... (the answer goes on)"


def _user_of(pid: int) -> int:
    """Return the user that a process belongs to: ourselves, unless we are root.

    Raises:
        CannotAskError: there is no such process, or it belongs to another user.
    """
    from aioqueue import posix  # only when used

    try:
        return posix.user_of(pid)
    except (ProcessLookupError, OverflowError):
        raise CannotAskError(f"there is no process {pid}") from None
    except PermissionError:
        raise CannotAskError(
            f"process {pid} belongs to another user: ask as that user, or as root"
        ) from None


def _not_prepared(pid: int, path: str) -> NoReturn:
    from aioqueue import posix  # only when used

    command = on_one_line(posix.command_of(pid))
    command = f" ({command[:60]}{'...' if len(command) > 60 else ''})" if command else ""
    raise CannotAskError(
        f"process {pid}{command} does not listen for requests: call"
        f" aioqueue.explain_on_signal() in it, or start it with {PREPARE}=1 in its environment"
        f" (there is no {on_one_line(path)})"
    )


def _no_answer(pid: int, timeout: float) -> NoReturn:
    from aioqueue import posix  # only when used

    why = _STATES.get(posix.state_of(pid), "may be in a call that holds the GIL").format(pid=pid)
    raise CannotAskError(f"process {pid} did not answer within {timeout:g} s: it {why}")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``explain PID`` to the commands of a program."""
    parser = commands.add_parser(
        "explain",
        help="show why a running process hangs",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pid", type=_pid, metavar="PID", help="the process")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for the answer (default: 10)",
    )
    parser.set_defaults(do=lambda given: _show(given.pid, given.timeout, parser.prog))


def _show(pid: int, timeout: float, program: str) -> int:
    """Print the answer; return the exit status."""
    try:
        sys.stdout.write(ask(pid, timeout) + "\n")
    except CannotAskError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def _pid(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a process id")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a number of seconds > 0")
    return seconds
