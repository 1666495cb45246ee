"""The compat layer is a wing: nothing leads into it, and it stands on public names alone."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from tests.test_layers import COMPAT, MODULES, PUBLIC, RULES, imports, part, tree_of

WING = {name: path for name, path in MODULES.items() if part(name) == "compat"}


def test_nothing_imports_it() -> None:
    users = {
        module: one
        for module, path in MODULES.items()
        if part(module) != "compat"
        for one in imports(path)
        if part(one) == "compat"
    }
    assert not users


def taken() -> Iterator[tuple[str, str, str]]:
    """What it imports of the rest of aioqueue: by whom, from where, and which name."""
    for module, path in WING.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                origin = node.module
                if part(f"{origin}.") != "compat" and origin.split(".")[0] == "aioqueue":
                    yield from ((module, origin, alias.name) for alias in node.names)


def test_it_takes_public_names_only() -> None:
    found = list(taken())
    assert any(module.startswith(f"{COMPAT}.queues") for module, _, _ in found)
    private = []
    for module, origin, name in found:
        if name in ("compat", "sync", "inputs", "telemetry") and origin == "aioqueue":
            continue
        names = importlib.import_module(origin).__all__
        whole = f"{origin}.{name}" in PUBLIC | RULES
        if not whole and (origin not in PUBLIC | RULES or name not in names):
            private.append(f"{module} imports {origin}.{name}")
    assert not private


def test_it_touches_nothing_private_of_ours() -> None:
    """Of what it has from the rest of aioqueue, by the name under which it has it."""
    found = []
    for module, path in WING.items():
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "aioqueue"
            and part(f"{node.module}.") != "compat"
            for alias in node.names
        }
        found += [
            f"{module}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and isinstance(node.value, ast.Name)
            and node.value.id in names
        ]
    assert not found
