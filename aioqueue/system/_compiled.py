"""What the package does because code may be compiled, or made, while it is installed or runs.

No other module assigns to its own namespace by a string, and none calls `exec`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any


def bind_uncompiled(namespace: dict[str, Any], **functions: Any) -> None:
    """Give a module the Python functions that stand in for C functions of the same names.

    The ``.pxd`` file of a compiled module declares these names as C functions, which Cython then
    calls directly. An assignment or an import in the module would be a second declaration, which
    Cython refuses. So the module only annotates such a name, and no statement binds it. (A compiled
    module is given them, too, and does not use them.)

    Args:
        namespace: the ``globals()`` of the module.
        functions: the functions, by name.
    """
    namespace.update(functions)


def make_function(parameters: str, *statements: str, **names: Any) -> Any:
    """Make a function from source text, so that a loop over components is written out.

    NumPy moves one value in a tenth of a microsecond, and one turn of a loop takes longer.

    Args:
        parameters: of the function.
        statements: its lines.
        names: what they refer to.
    """
    body = "\n    ".join([f"def function({parameters}):", *statements])
    source = f"def bind({', '.join(names)}):\n  {body}\n  return function"
    return _binder_of(source)(**names)


@lru_cache(64)
def _binder_of(source: str) -> Callable[..., Any]:
    """Return a function that makes the function of a source.

    The names are in cells rather than in globals of each function: CPython looks up globals fast
    only if all functions of one code share them.
    """
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    binder: Callable[..., Any] = namespace.pop("bind")  # else it would be in a cycle
    return binder
