"""The command: ``python -m aioqueue COMMAND ...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from aioqueue.inputs.sources import journal

__all__ = ("main",)

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "journal": journal.command,
}
"""Each is given the arguments behind its name, and returns the exit status."""


def main(arguments: Sequence[str]) -> int:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(prog="python -m aioqueue", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    return COMMANDS[given.command](given.arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
