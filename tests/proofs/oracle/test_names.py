"""The programs use all that compat.v1 has of what input pipelines are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from proofs.oracle import kinds

FAMILIES = (
    *("image", "sparse", "data", "data.experimental", "lookup", "debugging", "strings"),
    *("io", "python_io", "gfile", "nest", "random", "initializers", "queue"),
)
PER_KIND = 150
NEVER = {
    "gfile.FileStatistics": "what Stat returns",
    "initializers.Initializer": "what the others are",
}
"""What no program names, and why."""


def found(path: str) -> Iterator[Any]:
    """The objects that a dotted name goes through, as far as there are such."""
    here: Any = tf
    for name in path.split("."):
        here = getattr(here, name, None)
        yield here


@cache
def used() -> frozenset[int]:
    """What the programs name, under whichever of its names."""
    names = list(kinds.KINDS)
    lines = (
        line
        for program in kinds.programs(PER_KIND * len(names), 1, names)
        for line in program.lines
    )
    paths = {path for line in lines for path in re.findall(r"\btf\.([A-Za-z_][\w.]*)", line)}
    return frozenset(id(one) for path in paths for one in found(path))


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_use_every_name(family: str) -> None:
    *_, module = found(family)
    assert isinstance(module, ModuleType)
    public = getattr(module, "__all__", None) or [one for one in dir(module) if one[0] != "_"]
    functions = {name: getattr(module, name) for name in public}
    unused = {
        f"{family}.{name}"
        for name, one in functions.items()
        if callable(one) and id(one) not in used()
    }
    assert unused <= set(NEVER)
