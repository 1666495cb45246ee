"""The commands that install extras, as messages about missing packages give them.

A package index has another project under the name ``aioqueue``. So until this one is released under
a name of its own, extras are installed from a checkout. The name of the distribution stands in
``pyproject.toml`` alone: an installed package has it in its metadata.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_PACKAGE = "aioqueue"


def command_for(extra: str) -> str:
    """Return the command that installs an extra, and where to run it.

    Args:
        extra: the name of the extra, such as ``"torch"``.
    """
    name = released_name()
    if name is None:
        return f"pip install '.[{extra}]' in a checkout of {_PACKAGE}"
    return f"pip install '{name}[{extra}]'"


def released_name() -> str | None:
    """Return the name of the distribution that this package was installed from; ``None`` if it is
    not installed, or has a name that belongs to another project."""
    from importlib.metadata import distributions  # it brings the parser of `email`

    for found in distributions():
        # `importlib.metadata.packages_distributions` would parse all of them, which takes long.
        has_this = f"\n{_PACKAGE}/__init__.py," in "\n" + (found.read_text("RECORD") or "")
        if has_this and found.name.lower() != _PACKAGE:
            return found.name
    return None


def required(name: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that comes with an extra.

    Raises:
        ModuleNotFoundError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs the module '{name}': {command_for(extra)}",
            name=name,
        ) from error
