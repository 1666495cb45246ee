"""``tf.app``: run a script's ``main`` with its flags parsed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from aioqueue.compat.v1 import flags
from aioqueue.compat.v1.absent import names_of

__all__ = ("flags", "run")


def run(
    main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Parse the flags, call ``main`` with what is left of the command line, and exit."""
    rest = flags.FLAGS(list(sys.argv if argv is None else argv), known_only=True)
    sys.exit((main or sys.modules["__main__"].__dict__["main"])(rest))


__getattr__ = names_of(__name__)
