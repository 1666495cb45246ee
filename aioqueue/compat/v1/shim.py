"""After `install`, ``import tensorflow`` gives `aioqueue.compat.v1` in this process.

A finder at the front of ``sys.meta_path`` answers for ``tensorflow`` and everything below it, even
if TensorFlow is installed. Of modules that scripts import and never use, only names fail.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from aioqueue.compat import v1
from aioqueue.compat.v1.absent import PACKAGE, AbsentNameError, explain
from aioqueue.compat.v1.private import ABSENT, MODULES, NAMES

__all__ = ("ROOT", "TensorFlowFinder", "find", "install")

ROOT = "tensorflow"

PACKAGES = frozenset(
    package
    for module in MODULES
    for package in itertools.accumulate(module.split(".")[:-1], "{}.{}".format)
    if not package.startswith("contrib") or "python" in package
)
"""The packages that contain private modules."""


def install() -> None:
    """Let ``import tensorflow`` give this package from now on. Calling it again changes nothing."""
    if not any(isinstance(finder, TensorFlowFinder) for finder in sys.meta_path):
        for name in [name for name in sys.modules if _below(name) is not None]:
            del sys.modules[name]
        sys.meta_path.insert(0, TensorFlowFinder())


def find(path: str) -> Any:
    """What a script gets for a name of TensorFlow. Nothing is imported under that name."""
    parts = path.removeprefix("compat.v1").lstrip(".").split(".") if path else []
    found: Any = v1
    for count in range(len(parts), 0, -1):
        below = ".".join(parts[:count])
        if below in ABSENT:
            raise AbsentNameError(explain(path, _public(path)))
        if below in MODULES or below in PACKAGES:
            found, parts = _Private(f"{ROOT}.{below}", below), parts[count:]
            break
    for part in parts:
        if isinstance(found, ModuleType):
            found = _name_in(found, part)
        elif isinstance(found, type):
            found = getattr(found, part)
        else:
            break  # an object: what it has is not checked
    return found


def _name_in(module: ModuleType, name: str) -> Any:
    """A name of a namespace, and not one of our own modules that has the same name."""
    if isinstance(module, _Private) or name in getattr(module, "__all__", ()):
        return getattr(module, name)
    if name == "__dict__":  # tf.logging.__dict__[FLAGS.level]
        return vars(module)
    added = vars(module).get(name)
    if added is not None and not isinstance(added, ModuleType):
        return added  # the program that runs the script has added it
    return module.__getattr__(name)


class TensorFlowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads ``tensorflow`` and its modules, and explains absent ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        below = _below(fullname)
        if below is None:
            return None
        is_known = below in PACKAGES or below in MODULES or below in ABSENT
        if not is_known and _namespace(below) is None:
            raise ModuleNotFoundError(explain(below, _public(below)), name=f"{PACKAGE}.{below}")
        return importlib.machinery.ModuleSpec(fullname, self, origin=PACKAGE, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        below = _below(spec.name) or ""
        if below in ABSENT:
            return _Absent(spec.name, below)
        if below in PACKAGES or below in MODULES:
            return _Private(spec.name, below)
        source = _namespace(below)
        assert source is not None, "find_spec has asked the same"
        return _Alias(spec.name, source)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` has filled the module."""


class _Alias(ModuleType):
    """A module under another name; a namespace itself would get another spec from the import."""

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name, source.__doc__)
        self.__dict__.update((one, getattr(source, one)) for one in source.__all__)
        self.__dict__.update(_source=source, __all__=source.__all__)

    def __getattr__(self, name: str) -> Any:
        if f"{_below(self.__name__)}.{name}".lstrip(".") in PACKAGES:
            return _loaded(f"{self.__name__}.{name}")
        return _name_in(self.__dict__["_source"], name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_source"])


class _Private(ModuleType):
    """A private module, or a package of them, which looks names up in some namespaces."""

    def __init__(self, name: str, below: str) -> None:
        super().__init__(name)
        spaces = [_namespace(one) for one in MODULES.get(below, ("",))]
        self.__dict__["_below"] = below
        self.__dict__["_spaces"] = [one for one in spaces if one is not None]
        self.__dict__.update(NAMES.get(below, {}))

    def __getattr__(self, name: str) -> Any:
        below, spaces = self.__dict__["_below"], self.__dict__["_spaces"]
        if name == "__all__":
            # Without `print` and the like, which `import *` would take from a script.
            everything = {
                *NAMES.get(below, ()),
                *(one for space in spaces for one in space.__all__),
            }
            return sorted(everything - set(dir(builtins)))
        inner = f"{below}.{name}"
        if inner in PACKAGES or inner in MODULES or inner in ABSENT:
            return _loaded(f"{self.__name__}.{name}")
        for space in spaces:
            if name in space.__all__:
                return getattr(space, name)
        failure: AttributeError | None = None
        for space in spaces:
            try:
                return _name_in(space, name)
            except AttributeError as error:
                failure = failure or error
        raise failure or AttributeError(name)

    def __dir__(self) -> list[str]:
        return list(self.__all__)


class _Absent(ModuleType):
    """A module without names: you can import it, and each name raises an error that says why."""

    def __init__(self, name: str, below: str) -> None:
        super().__init__(name)
        self.__dict__.update(_below=below, __all__=())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        path = f"{self.__dict__['_below']}.{name}"
        raise AbsentNameError(explain(path, _public(path)))


def _loaded(fullname: str) -> ModuleType:
    if fullname not in sys.modules:
        finder = TensorFlowFinder()
        spec = finder.find_spec(fullname)
        assert spec is not None, "only ours are asked for"
        sys.modules[fullname] = importlib.util.module_from_spec(spec)
    return sys.modules[fullname]


def _below(fullname: str) -> str | None:
    """The name below ``tensorflow``: empty for the package itself, None for another package."""
    if fullname == ROOT:
        return ""
    return fullname.removeprefix(f"{ROOT}.") if fullname.startswith(f"{ROOT}.") else None


def _public(below: str) -> str | None:
    """The public name whose reason is that of a name in a private module, if there is one."""
    module = below
    while module:
        if module in ABSENT:
            return ABSENT[module]
        module = module.rpartition(".")[0]
    module, _, name = below.rpartition(".")
    return f"{MODULES[module][0]}.{name}".lstrip(".") if module in MODULES else None


def _namespace(below: str) -> ModuleType | None:
    """One of our namespaces by its name in TensorFlow, or None."""
    if below.startswith("compat.v1"):
        below = below.removeprefix("compat.v1").lstrip(".")
    found: Any = v1
    for part in filter(None, below.split(".")):
        # Only public names: Python has also set our own modules there, such as `ops`.
        if part not in getattr(found, "__all__", ()):
            return None
        found = getattr(found, part)
    return found if isinstance(found, ModuleType) else None
