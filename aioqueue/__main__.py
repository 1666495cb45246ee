"""``python -m aioqueue``: tools for programs that use aioqueue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aioqueue import inspection
from aioqueue.inputs.core import journal
from aioqueue.telemetry import explain_socket

__all__ = ("main",)


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
    code: int = given.do(given)
    return code


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
