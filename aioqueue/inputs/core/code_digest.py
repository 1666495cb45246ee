"""A digest of what a function does: of its code, its defaults, what it encloses and what it calls.

It tells whether what a function has made earlier is still what it would make. It looks at the
bytecode, so comments and formatting do not matter, but another version of Python does. Functions of
the same package that are called by their global names count too, and so on. What comes from other
packages counts by its name and not by its code.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Set
from hashlib import blake2b
from typing import Any, Final

import numpy as np

__all__ = ("digest_of_function",)

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_MOST_BYTES: Final = 2**20
"""Of a larger array or string, the ends and the length count."""


def digest_of_function(function: Callable[..., Any]) -> str:
    """A short digest of a function: 16 hexadecimal digits.

    Args:
        function: a function, a method, a `functools.partial`, or an object with ``__call__``.
    """
    digest = blake2b(digest_size=8)
    seen: dict[int, int] = {}
    for part in _parts(function, seen):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, int]) -> Iterator[bytes]:
    """What a value consists of, as far as it can be told the same in another process."""
    if isinstance(value, _PLAIN):
        yield _named(value)
        yield _ends(value.encode("utf-8", "surrogatepass") if type(value) is str else value)
        return
    if id(value) in seen:  # it contains itself, or came before
        yield f"seen {seen[id(value)]}".encode()
        return
    seen[id(value)] = len(seen)
    yield _named(value)
    if isinstance(value, types.CodeType):
        yield from _code(value, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, types.MethodType):
        yield from _all((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _all((value.func, value.args, value.keywords), seen)
    elif isinstance(value, tuple | list):
        yield from _all(value, seen)
    elif isinstance(value, Mapping):
        for key in value:
            yield from _all((key, value[key]), seen)
    elif isinstance(value, Set):
        # Its order may be another one in each process.
        yield from sorted(b"".join(_parts(one, dict(seen))) for one in value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape}".encode()
        yield _ends(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, np.generic):
        yield value.tobytes()
    elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        yield getattr(value, "__qualname__", value.__name__).encode()
    else:
        yield from _object(value, seen)


def _all(values: Any, seen: dict[int, int]) -> Iterator[bytes]:
    for value in values:
        yield from _parts(value, seen)


def _named(value: Any) -> bytes:
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}".encode()


def _ends(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else repr(value).encode()
    if len(data) <= _MOST_BYTES:
        return data
    half = _MOST_BYTES // 2
    return data[:half] + str(len(data)).encode() + data[-half:]


def _code(code: types.CodeType, seen: dict[int, int]) -> Iterator[bytes]:
    yield code.co_code
    yield " ".join((*code.co_names, *code.co_freevars)).encode()
    constants = code.co_consts
    if constants and isinstance(constants[0], str) and code.co_flags & 0x3:
        constants = (None, *constants[1:])  # a text that documents the function, perhaps
    yield from _all(constants, seen)


def _function(function: types.FunctionType, seen: dict[int, int]) -> Iterator[bytes]:
    yield from _all((function.__code__, function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            contents = cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
        yield from _parts(contents, seen)
    package = function.__module__.partition(".")[0]
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__:
            value = function.__globals__[name]
            yield name.encode()
            yield from _parts(value if _counts(value, package) else _told(value), seen)


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _counts(value: Any, package: str) -> bool:
    """Whether a global of a function counts with all that it is."""
    if isinstance(value, types.FunctionType):
        return value.__module__.partition(".")[0] == package
    return isinstance(value, (*_PLAIN, tuple, list, dict, set, frozenset, np.ndarray, np.generic))


def _told(value: Any) -> str:
    """The name of a thing of another package."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{getattr(value, '__module__', '')}.{name or type(value).__qualname__}"


def _object(value: Any, seen: dict[int, int]) -> Iterator[bytes]:
    """An object that can be called: its method, and its attributes."""
    call = getattr(type(value), "__call__", None)  # noqa: B004  # the method is wanted
    if isinstance(call, types.FunctionType):
        yield from _parts(call, seen)
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None:
        yield from _parts(wrapped, seen)
    attributes = getattr(value, "__dict__", {})
    for name in sorted(attributes):
        if name != "__wrapped__":
            yield name.encode()
            yield from _parts(attributes[name], seen)
