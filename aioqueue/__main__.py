"""``python -m aioqueue``: tools for programs that use aioqueue."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from aioqueue import inspection
from aioqueue.base.display_text import print_to
from aioqueue.items import journal
from aioqueue.telemetry.explain import explain_socket


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, or 1 if the command failed.

    Args:
        arguments: the arguments of the command line; ``None`` for those of this process.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        code: int = given.do(given)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:  # of standard output: all others have their messages
        _forget_output()
        if not isinstance(error, BrokenPipeError):  # as from a reader that has seen enough
            print_to(sys.stderr, f"{parser.prog} {given.command}: cannot write: {error}")
        return 1
    return code


def _forget_output() -> None:
    """Redirect what standard output still buffers to the null device, when the process ends."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aioqueue", description="Tools for programs that use aioqueue."
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    explain_socket.add_command(commands)
    inspection.add_command(commands)
    journal.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
