"""A griffe extension for the reference: class docstrings as they are at run time.

mkdocstrings reads sources. But the two faces of a queue take their docstring from the class that
describes its kind (``__doc__ = FIFOKind.__doc__``), which only a running Python sees.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Replaces docstrings that are assigned; and reStructuredText's ``::``, which ends a line."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is not None:
            mod.docstring.value = mod.docstring.value.replace("::\n", ":\n")

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if "__doc__" not in cls.members:
            return
        module = importlib.import_module(cls.module.path)
        text = inspect.getdoc(getattr(module, cls.name))
        if text:
            cls.docstring = griffe.Docstring(text, lineno=cls.lineno, parent=cls)
        cls.del_member("__doc__")
