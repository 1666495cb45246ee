"""The compat layer is a wing: nothing leads into it, and it stands on public names alone."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import aioqueue.compat.v1 as tf
from tests.project.test_layers import COMPAT, MODULES, PUBLIC, RULES, imports, part, tree_of

OURS = re.compile(r"^\s*(from|import) aioqueue(?!\.compat)", re.MULTILINE)
"""An import of what is not in the wing."""


def mentions(path: Path, word: str | re.Pattern[str]) -> bool:
    """Whether a file is worth being parsed."""
    return re.search(word, path.read_text(encoding="utf-8")) is not None


@functools.cache
def taken() -> dict[str, list[ast.ImportFrom]]:
    """The statements by which the modules of the wing import the rest of aioqueue."""
    return {
        module: [
            node
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom)
            and node.module is not None
            and re.fullmatch(r"aioqueue(\.(?!compat\b).*)?", node.module)
        ]
        for module, path in MODULES.items()
        if part(module) == "compat" and mentions(path, OURS)
    }


def test_nothing_imports_it() -> None:
    users = {
        module: one
        for module, path in MODULES.items()
        if part(module) != "compat" and mentions(path, r"import.*\bcompat\b|\.compat\b")
        for one in imports(path)
        if part(one) == "compat"
    }
    assert not users


def public_names(module: str) -> Collection[str]:
    """What users import of a module; of a module with rules, all that it has."""
    found = importlib.import_module(module)
    return getattr(found, "__all__", None) or vars(found)


def test_it_takes_public_names_only() -> None:
    assert any(module.startswith(f"{COMPAT}.queues") for module in taken())
    private = [
        f"{module} imports {node.module}.{alias.name}"
        for module, nodes in taken().items()
        for node in nodes
        for alias in node.names
        if f"{node.module}.{alias.name}" not in PUBLIC | RULES | {"aioqueue.compat"}
        and (
            node.module not in PUBLIC | RULES
            or alias.name.startswith("_")
            or alias.name not in public_names(node.module)
        )
    ]
    assert not private


def test_it_touches_nothing_private_of_ours() -> None:
    """Of what it has from the rest of aioqueue, by the name under which it has it."""
    found = []
    for module, nodes in taken().items():
        names = {alias.asname or alias.name for node in nodes for alias in node.names}
        found += [
            f"{module}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree_of(MODULES[module]))
            if isinstance(node, ast.Attribute)
            and re.match(r"_[^_]", node.attr)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
        ]
    assert not found


def test_a_namespace_takes_what_a_room_lists() -> None:
    """In a room, ``__all__`` has TensorFlow's names, and none that only the wing uses."""
    spaces, pending = set(), [tf]
    while pending:
        spaces.add(space := pending.pop())
        found = (vars(space).get(name) for name in space.__all__)
        pending += [one for one in found if isinstance(one, ModuleType) and one not in spaces]
    taken = {id(getattr(space, name)) for space in spaces for name in space.__all__}
    rooms = [one for name, one in sys.modules.items() if re.match(rf"{COMPAT}\.\w+\.", name)]
    listed = [(room, name) for room in rooms for name in getattr(room, "__all__", ())]
    assert listed
    left = [
        f"{room.__name__}.{name}" for room, name in listed if id(getattr(room, name)) not in taken
    ]
    assert left == []
