"""The command line: ``python -m aioqueue``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aioqueue.telemetry.asking import CannotAskError, ask

__all__ = ("main",)

_PROGRAM = "python -m aioqueue"
_LONGEST = 86_400.0  # seconds

_EXPLAIN = """\
Asks a running process who waits for whom, since when, and for what in the end: queues, workers and
the items that they are at, with the lines of code where they are. The process goes on meanwhile.

It must have been prepared: by aioqueue.explain_on_signal(), or by AIOQUEUE_EXPLAIN=1 in the
environment in which it was started.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 1 if it could not be done.

    Args:
        arguments: those of the command line; ``None`` for those of this process.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        sys.stdout.write(ask(options.pid, options.timeout) + "\n")
    except CannotAskError as error:
        sys.stderr.write(f"{_PROGRAM} explain: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Tools for running programs that use aioqueue."
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    explain = commands.add_parser(
        "explain",
        help="why does it hang? asks a running process",
        description=_EXPLAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("pid", type=_pid, metavar="PID", help="of the process")
    explain.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for its answer (default: 10)",
    )
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
