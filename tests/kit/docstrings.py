"""Reading docstrings in Google style."""

from __future__ import annotations

import inspect
import textwrap


def sections(documentation: str) -> dict[str, str]:
    """The sections of a docstring in Google style, by name."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(documentation).splitlines():
        if line.endswith(":") and line[:-1].isalpha() and line[0].isupper():
            current = line[:-1]
            found[current] = []
        else:
            found[current].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def entries(section: str) -> list[str]:
    """The names that an ``Args:`` or ``Raises:`` section explains."""
    lines = textwrap.dedent(section).splitlines()
    return [line.split(":")[0].strip(" *") for line in lines if line and not line.startswith(" ")]
