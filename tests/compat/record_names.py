"""Write the tables of names into the reference: ``python -m tests.compat.record_names``.

The page has three tables. What differs from TensorFlow is written by hand; here, only names that
are not there any more are taken out of it. The names that are absent come from `REASONS`, and those
that are as in TensorFlow are all the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from types import ModuleType

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.absent import REASONS
from aioqueue.compat.v1.protos import EXAMPLE_MESSAGES
from tests.kit.children import ROOT

PAGE = ROOT / "docs" / "reference" / "compat.md"

Row = tuple[list[str], str]
"""Names, and what is said of them."""


def public_names(space: ModuleType = tf, path: str = "tf") -> Iterator[str]:
    """Everything public below a namespace, by its full name; namespaces themselves left out."""
    for name in space.__all__:
        found = getattr(space, name)
        if isinstance(found, ModuleType):
            yield from public_names(found, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    if path == "tf":
        yield from (f"tf.train.{name}" for name in EXAMPLE_MESSAGES)


def table(text: str, heading: str) -> str:
    """The rows of the table below a heading."""
    found = re.search(
        rf"^### {heading}\n.*?\|---\|---\|\n(.*?)(?=^\n|\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found is not None, heading
    return found[1]


def rows(text: str, heading: str) -> list[Row]:
    cells = [line.strip("|").split("|") for line in table(text, heading).splitlines()]
    return [(re.findall(r"`([^`]+)`", first), second.strip()) for first, second in cells]


def written(rows: list[Row]) -> str:
    return "".join(
        f"| {', '.join(f'`{name}`' for name in sorted(names, key=place))} | {what} |\n"
        for names, what in rows
    )


def page(text: str) -> str:
    """The page with the tables as they are to be."""
    names = {*public_names()} - {"tf.__version__"}
    kept = [
        ([name for name in some if name in names], how) for some, how in rows(text, "Different")
    ]
    different = [(some, how) for some, how in kept if some]
    same = sorted(names - {name for some, _ in different for name in some}, key=place)
    reasons: dict[str, list[str]] = {}
    for name, reason in REASONS.items():
        reasons.setdefault(reason, []).append(f"tf.{name}")
    spaces = groupby(sorted(same, key=space_of), space_of)
    tables = {
        "Different": written(different),
        "Absent": written([(some, reason) for reason, some in reasons.items()]),
        "As in TensorFlow": "".join(
            f"| `{space}` | {', '.join(f'`{name[len(space) + 1 :]}`' for name in some)} |\n"
            for space, some in spaces
        ),
    }
    for heading, lines in tables.items():
        text = text.replace(table(text, heading), lines)
    return text


def place(name: str) -> tuple[str, str]:
    return name.lower(), name


def space_of(name: str) -> str:
    return name.rpartition(".")[0]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
