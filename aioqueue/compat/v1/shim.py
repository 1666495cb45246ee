"""``import tensorflow`` gives `aioqueue.compat.v1`, in this process, once `install` was called.

A finder at the front of ``sys.meta_path`` answers for ``tensorflow`` and everything below it, so
that TensorFlow is not imported even where it is installed. What TensorFlow has and this package
has not raises `ImportError` with an explanation, not the one of a missing module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from aioqueue.compat import v1
from aioqueue.compat.v1.absent import PACKAGE, explain

__all__ = ("TensorFlowFinder", "install")

ROOT = "tensorflow"

PRIVATE_MODULES: dict[str, str] = {
    "client.session": "",
    "data.ops.dataset_ops": "data",
    "framework.constant_op": "",
    "framework.dtypes": "",
    "framework.errors": "errors",
    "framework.errors_impl": "errors",
    "framework.ops": "",
    "framework.random_seed": "",
    "framework.tensor_shape": "",
    "lib.io.python_io": "python_io",
    "lib.io.tf_record": "python_io",
    "ops.array_ops": "",
    "ops.control_flow_ops": "",
    "ops.data_flow_ops": "",
    "ops.io_ops": "",
    "ops.math_ops": "",
    "ops.parsing_ops": "",
    "ops.random_ops": "",
    "ops.script_ops": "",
    "ops.state_ops": "",
    "ops.string_ops": "",
    "ops.variables": "",
    "platform.app": "app",
    "platform.flags": "flags",
    "platform.gfile": "gfile",
    "platform.tf_logging": "logging",
    "training.basic_session_run_hooks": "train",
    "training.coordinator": "train",
    "training.input": "train",
    "training.monitored_session": "train",
    "training.queue_runner": "train",
    "training.queue_runner_impl": "train",
    "training.session_run_hook": "train",
    "training.training": "train",
    "util.compat": "compat",
}
"""Modules below ``tensorflow.python`` that scripts import from, each with our namespace for it."""


def install() -> None:
    """Let ``import tensorflow`` give this package from now on. Calling it again changes nothing."""
    if not any(isinstance(finder, TensorFlowFinder) for finder in sys.meta_path):
        for name in [name for name in sys.modules if _below(name) is not None]:
            del sys.modules[name]
        sys.meta_path.insert(0, TensorFlowFinder())


class TensorFlowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads ``tensorflow`` and its modules, and explains those that are not there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for every name that begins with ``tensorflow``."""
        below = _below(fullname)
        if below is None:
            return None
        if _source(below) is None:
            raise ModuleNotFoundError(explain(below), name=f"{PACKAGE}.{below}")
        return importlib.machinery.ModuleSpec(fullname, self, origin=PACKAGE, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make a module that has the names of the namespace that it stands for."""
        source = _source(_below(spec.name) or "")
        assert source is not None, "find_spec has asked the same"
        return _Alias(spec.name, source)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run."""


class _Alias(ModuleType):
    """A module under another name with what a namespace has.

    The namespace itself cannot stand in: the import system would replace its spec, and ``from
    tensorflow import name`` would look for modules below its own name.
    """

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name, source.__doc__)
        self.__dict__.update((one, getattr(source, one)) for one in source.__all__)
        self.__dict__.update(_source=source, __all__=source.__all__)

    def __getattr__(self, name: str) -> Any:
        # Not `getattr`: it finds our own modules too, and `from tensorflow.python.framework import
        # ops` means theirs.
        return self.__dict__["_source"].__getattr__(name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_source"])


def _below(fullname: str) -> str | None:
    """What comes after ``tensorflow.``; empty for itself; None if it is another package."""
    if fullname == ROOT:
        return ""
    return fullname.removeprefix(f"{ROOT}.") if fullname.startswith(f"{ROOT}.") else None


def _source(below: str) -> ModuleType | None:
    """The namespace that a module stands for; None if there is none."""
    if below.startswith("compat.v1"):
        below = below.removeprefix("compat.v1").lstrip(".")
    if below == "python" or any(
        f"python.{name}.".startswith(f"{below}.") for name in PRIVATE_MODULES
    ):
        below = PRIVATE_MODULES.get(below.removeprefix("python").lstrip("."), "")
    found: Any = v1
    for part in filter(None, below.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            return None
    return found if isinstance(found, ModuleType) else None
