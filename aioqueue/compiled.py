"""Show the source of compiled modules in tracebacks.

A compiled module is installed next to the file that it was made from. Python asks the module's
loader for the source, and the loader of extension modules has none.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

__all__ = ("show_sources",)


class _LoaderWithSource(ExtensionFileLoader):
    """The loader of a compiled module. It knows the file that was compiled."""

    def get_source(self, fullname: str) -> str:  # type: ignore[override]  # typeshed: None
        file = Path(self.path).with_name(f"{fullname.rpartition('.')[2]}.py")
        return file.read_text(encoding="utf-8")


def show_sources() -> None:
    """Let the package's compiled modules that have been imported so far show their source."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name.startswith("aioqueue.") and spec and type(spec.loader) is ExtensionFileLoader:
            spec.loader = module.__loader__ = _LoaderWithSource(name, str(spec.origin))
