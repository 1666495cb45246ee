"""A griffe extension for the reference: docstrings and names as they are at run time.

mkdocstrings reads sources. But the two faces of a queue take their docstring from the class that
describes its kind (``__doc__ = FIFOKind.__doc__``), which only a running Python sees. And
``aioqueue.inputs.prepare`` is a function when it runs, but a file too: griffe would show that.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Replaces docstrings that are assigned; reStructuredText's ``::``, which ends a line; and
    modules that a function of the same name hides.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in [pkg, *pkg.modules.values()]:
            show_functions(module)

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


def show_functions(package: griffe.Module) -> None:
    """Put functions in the place of the modules that they hide, because both have one name.

    What else the package takes from such a module is looked up first: then no path leads there.
    """
    for name, module in list(package.modules.items()):
        function = module.members.get(name)
        if name in package.imports and function is not None and function.is_function:
            for member in package.members.values():
                if member.is_alias and member.target_path.startswith(f"{module.path}."):
                    member.resolve_target()
            package.set_member(name, function)
