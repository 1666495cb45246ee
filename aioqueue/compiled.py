"""The sources of what was compiled: tracebacks show their lines.

A module that was compiled is installed beside the file that it was made of. Python asks the loader
of a module for its source, and that of extension modules has none.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

__all__ = ("show_sources",)


class _LoaderWithSource(ExtensionFileLoader):
    """What has loaded a compiled module; it knows the file that was compiled."""

    def get_source(self, fullname: str) -> str:  # type: ignore[override]  # typeshed: None
        file = Path(self.path).with_name(f"{fullname.rpartition('.')[2]}.py")
        return file.read_text(encoding="utf-8")


def show_sources() -> None:
    """Let the compiled modules of the package that have been imported so far tell their source."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name.startswith("aioqueue.") and spec and type(spec.loader) is ExtensionFileLoader:
            spec.loader = module.__loader__ = _LoaderWithSource(name, str(spec.origin))
