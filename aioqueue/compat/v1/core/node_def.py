"""The description of an operation: its record, and the line of the script that made it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ("NodeDef", "calling_line")

_LIBRARY = str(Path(__file__).parents[1])


class NodeDef:
    """What an operation is, as a record: its name, its type, its inputs' names, its attributes."""

    __slots__ = ("attr", "input", "name", "op")

    def __init__(self, name: str, op: str, inputs: Sequence[str], attr: Mapping[str, Any]) -> None:
        self.name: str = name
        self.op: str = op
        self.input: list[str] = list(inputs)
        self.attr: dict[str, Any] = dict(attr)

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeDef, (self.name, self.op, self.input, {})  # attributes may be functions

    def __repr__(self) -> str:
        lines = [f'name: "{self.name}"', f'op: "{self.op}"']
        return "\n".join([*lines, *(f'input: "{one}"' for one in self.input)])


def calling_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside this package; None if all frames are inside."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
