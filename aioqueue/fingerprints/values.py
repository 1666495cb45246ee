"""What a value is for comparison: a digest that another process finds again.

Two runs of an unchanged program get the same digest, whatever ``PYTHONHASHSEED`` says, and two
values that differ get different ones. `Walk` goes through a value as a pickler would, but its
result does not depend on where objects lie in memory:

- Sets are sorted by the digests of what they hold. An object counts by what it holds, and not by
  whether another place holds the same object.
- A function of the program is its code, its defaults, what it encloses, and what its code reads: by
  global names, through modules of the program, and through what it encloses. A class is all that is
  in it, with its bases. Functions, classes and globals become *parts* with names of their own, so
  that a message can name the one that has changed.
- Code of an installed package counts by name and version (see `programs`).
- The reducers of pickle and cloudpickle take all other objects apart. An object that they refuse,
  or take apart differently each time, cannot be compared, and is refused.

An attribute of an object of the program's own classes counts if some code that was reached reads
its name, so that an unused logger's id or start time changes nothing. Code that reads names that
nobody can see, as by `getattr` and `vars`, makes all attributes count.
"""

from __future__ import annotations

import abc
import copyreg
import enum
import functools
import gc
import io
import marshal
import operator
import os
import re
import struct
import sys
import types
import typing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from aioqueue.base.display_text import without_secrets
from aioqueue.base.extras import required
from aioqueue.fingerprints.code import Import, NamesRead, parts_of_code, reading_of
from aioqueue.fingerprints.kinds import cure_of, is_stateless, open_file
from aioqueue.fingerprints.programs import file_of, module_name, package_of, resolved, source_of

_SIZE: Final = 16
_PLAIN: Final[frozenset[type]] = frozenset({bool, int, float, complex, str, bytes, type(None)})
_PREFIXES: Final = {cls: f"{cls.__name__}:".encode() for cls in _PLAIN}
_CHUNK: Final = 2**22
_LEAF: Final = 2**12
"""Digests of larger arrays and texts are kept for the next walk."""
_MOST_PARTS: Final = 400
_MOST_NAMED: Final = 32
_METHODS: Final = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_VIEWS: Final[tuple[type, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_DYNAMIC: Final = frozenset(
    {
        "__dict__",
        "__getattribute__",
        "__getstate__",
        "__reduce__",
        "__reduce_ex__",
        "__slots__",
        "asdict",
        "astuple",
        "attrgetter",
        "dir",
        "dump",
        "dumps",
        "eval",
        "exec",
        "fields",
        "getattr",
        "getattr_static",
        "getmembers",
        "hasattr",
        "vars",
    }
)
"""Code that reads one of these may read any attribute."""
_OF_NAMESPACES: Final = frozenset({"eval", "exec", "globals"})
"""Code that reads one of these may read any global variable of its module."""
_BY_TEXT: Final = frozenset({"eval", "query"})
"""Methods of data frames, which read variables that their texts name."""
_OF_ANNOTATIONS: Final = frozenset(
    {"__annotations__", "get_annotations", "get_type_hints", "getfullargspec", "signature"}
)
"""Code that reads one of these may read annotations."""
_OF_CLASSES: Final = frozenset(
    {
        "__abstractmethods__",
        "__annotations__",
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__static_attributes__",
        "__type_params__",
        "__weakref__",
        "_abc_impl",
    }
)
"""Attributes of classes that say nothing about what they do."""
_DATA_OF_CLASSES: Final = frozenset(
    {"__slots__", "__match_args__", "__dataclass_fields__", "__pydantic_fields__"}
)
_OPEN_BASES: Final = frozenset(
    {
        "builtins.object",
        "torch.utils.data.dataset.Dataset",
        "torch.utils.data.dataset.IterableDataset",
    }
)
_OPEN_MODULES: Final = frozenset({"abc", "collections.abc", "typing"})
"""Bases whose own code reads no attributes of an object but methods."""
_NAMESPACES: Final = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
_OF_MODULES: Final = frozenset(
    {"__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__", "__cached__"}
)
_SCRIPTS: Final = frozenset({"__main__", "__mp_main__"})
_SECRET: Final = re.compile(r"(?i)key|token|secret|passw|pwd|credential|auth|cookie|session")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_LONGEST: Final = 60
_SHOWN: Final = frozenset({"pathlib", "decimal", "datetime", "fractions", "re", "enum"})


class UnknownValueError(Exception):
    """An object cannot be compared with others.

    Args:
        where: where it is.
        what: what it is.
        cure: what to use instead, if anything is known.
    """

    def __init__(self, where: str, what: str, cure: str | None) -> None:
        super().__init__(f"{where} is {what}")
        self.where = where
        self.what = what
        self.cure = cure


class TooLargeError(Exception):
    """There is more than a walk was to look at."""


@dataclass
class Names:
    """The names that code reads, over all walks that belong together."""

    attributes: set[str] = field(default_factory=set)
    is_open: bool = False
    """Whether some code may read any name."""

    def add(self, reading: NamesRead) -> None:
        self.attributes |= reading.attributes
        self.attributes |= reading.words
        self.attributes |= _OF_ANNOTATIONS.intersection(reading.globals)
        self.is_open |= _reads_any(reading)

    def add_template(self, text: str) -> None:
        """Note what a text may read when it is formatted, as in ``"{0.size}".format(thing)``."""
        if len(text) <= 100 * _LONGEST:
            self.attributes |= set(_WORD.findall(text))

    def add_all(self, names: Names) -> None:
        self.attributes |= names.attributes
        self.is_open |= names.is_open

    def copy(self) -> Names:
        return Names(set(self.attributes), self.is_open)


Leaves = dict[int, tuple[Any, bytes]]
"""Digests of large arrays and texts, by their ids."""


class Walk:
    """Goes through values, and through the code of the program that they reach.

    Args:
        has_code: whether code counts, as for caches; else functions and classes count by name.
        names: which attributes were read in an earlier walk; ``None`` if all count.
        read: which were read if all count, which decides whether documentation and annotations do.
        leaves: what an earlier walk has found.
        most: how many bytes to look at, at most; ``None`` for all.
    """

    def __init__(
        self,
        *,
        has_code: bool,
        names: Names | None = None,
        read: Names | None = None,
        leaves: Leaves | None = None,
        most: int | None = None,
    ) -> None:
        self.parts: dict[str, Any] = {}
        """What was found, by name: numbers and short texts as they are, others as digests."""
        self.packages: dict[str, str] = {}
        """The versions of the packages that were reached, by name."""
        self.found: Names = Names()
        """The names that the code reads that was reached."""
        self._has_code = has_code
        self._names = names
        read = (names or Names()) if read is None else read
        self._keeps_texts = "__doc__" in read.attributes
        self._keeps_annotations = not _OF_ANNOTATIONS.isdisjoint(read.attributes)
        self._leaves: Leaves = {} if leaves is None else leaves
        self._left = most
        self._reducers = _reducers() if has_code else None
        self._labels: dict[int, tuple[Any, str]] = {}
        self._taken: dict[str, int] = {}
        self._pending: deque[Callable[[], None]] = deque()
        self._globals_taken: dict[tuple[str, str], str] = {}
        self._reading: set[int] = set()
        self._where: list[str | int] = []
        self._simple: set[type] = set()  # of objects that only their reducers take apart
        self._prunable: dict[type, bool] = {}
        # Tarjan's way of finding circles: what lies on none has a digest that is kept.
        self._done: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}
        self._stack: list[tuple[Any, int]] = []
        self._count = 0
        self._low = 0

    @property
    def reads_texts(self) -> bool:
        """Whether the code that was reached reads documentation or annotations."""
        return not {"__doc__", *_OF_ANNOTATIONS}.isdisjoint(self.found.attributes)

    def take(self, name: str, value: Any) -> None:
        """Make a value a part, with all that it reaches.

        Raises:
            UnknownValueError: something there cannot be compared.
        """
        if self._is_code(value):
            self.digest(value)
            self.parts.setdefault(name, self._label(value))
        else:
            self._part(name, value)
        while self._pending:
            self._pending.popleft()()
        if len(self.parts) > _MOST_PARTS:
            names = list(self.parts)[_MOST_PARTS:]
            rest = repr([(one, self.parts.pop(one)) for one in names]).encode()
            self.parts["others"] = _hashed([rest]).hex()

    def digest(self, value: Any) -> bytes:
        """The digest of a value.

        Raises:
            UnknownValueError: something there cannot be compared.
            TooLargeError: there is more than was to be looked at.
        """
        if type(value) in _PLAIN:
            return self._plain(value)
        key = id(value)
        known = self._done.get(key)
        if known is not None:
            return known[1]
        number = self._open.get(key)
        if number is not None:  # it contains itself
            self._low = min(self._low, number)
            return _hashed([b"again", str(self._count - number).encode()])
        number, outer = self._count, self._low
        self._count += 1
        self._open[key] = self._low = number
        self._stack.append((value, number))
        found = _hashed(self._content(value))
        low = self._low
        if low >= number:
            while self._stack and self._stack[-1][1] >= number:
                one, _ = self._stack.pop()
                del self._open[id(one)]
            self._count = number
            self._done[key] = (value, found)
            low = outer
        self._low = min(outer, low)
        return found

    def _plain(self, value: Any) -> bytes:
        if type(value) in (str, bytes) and len(value) >= _LEAF:
            known = self._leaves.get(id(value))
            if known is not None:
                return known[1]
            data = value if type(value) is bytes else value.encode("utf-8", "surrogatepass")
            found = self._data([type(value).__name__.encode()], [data])
            self._leaves[id(value)] = (value, found)
            return found
        if type(value) is str and "{" in value:
            self.found.add_template(value)
        data = _bytes_of(value)
        if self._left is not None:
            self._left -= len(data) + 1
            if self._left < 0:
                raise TooLargeError
        return blake2b(_PREFIXES[type(value)] + data, digest_size=_SIZE).digest()

    def _data(self, head: Iterable[bytes], chunks: Iterable[Any]) -> bytes:
        digest = blake2b(digest_size=_SIZE)
        for one in head:
            digest.update(len(one).to_bytes(8, "little"))
            digest.update(one)
        for chunk in chunks:
            if self._left is not None:
                self._left -= len(chunk) + 1
                if self._left < 0:
                    raise TooLargeError
            digest.update(chunk)
        return digest.digest()

    def _content(self, value: Any) -> Iterator[bytes]:
        cls = type(value)
        if cls in self._simple:
            yield from self._object(value)
        elif cls in weakref.ProxyTypes:
            yield b"proxy"
        elif cls is list or cls is tuple:
            yield cls.__name__.encode()
            yield from self._sequence(value)
        elif cls is dict:
            yield b"dict"
            yield from self._sequence(list(value))
            yield from self._sequence(list(value.values()))
        elif cls is set or cls is frozenset:
            yield cls.__name__.encode()
            yield from sorted(map(self.digest, value))
        elif cls is bytearray:
            yield self._data([b"bytearray"], [bytes(value)])
        elif cls is memoryview:
            yield self._data([b"memoryview", value.format.encode()], [value.tobytes()])
        elif cls is types.CodeType:
            yield from self._code(value)
        elif isinstance(value, np.ndarray) and _is_whole(value):
            yield self._array(value)
        elif isinstance(value, np.generic) and not value.dtype.hasobject:
            yield self._data([b"scalar", str(value.dtype).encode()], [value.tobytes()])
        elif isinstance(value, np.dtype):
            yield f"dtype {value.str} {value}".encode()
        elif is_tensor(value):
            yield self._tensor(value)
            if value.__dict__:
                yield from self._attributes(cls, value.__dict__)
        elif isinstance(value, typing.TypeVar | typing.ParamSpec | typing.TypeVarTuple):
            yield f"{cls.__name__} {value!r}".encode()
            bounds = (getattr(value, "__bound__", None), getattr(value, "__constraints__", ()))
            yield self.digest(bounds)
        elif cls is struct.Struct:
            yield f"struct {value.format}".encode()
        elif isinstance(value, type):
            yield self._named(b"class", value)
        elif cls is types.FunctionType:
            yield from self._function(value)
        elif cls is types.ModuleType or isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif cls is types.MethodType:
            yield from self._method(value)
        elif cls is types.BuiltinFunctionType or cls is types.MethodWrapperType:
            yield from self._builtin(value)
        elif cls in _METHODS:
            yield self._named(b"method", value.__objclass__)
            yield value.__name__.encode()
        elif cls in _VIEWS:
            yield cls.__name__.encode()
            yield from self._sequence(list(value))
        elif cls is types.MappingProxyType:
            yield b"proxy"
            yield self.digest(dict(value))
        elif cls is types.CellType:
            yield b"cell"
            yield from self._cell(value)
        elif cls is property:
            yield b"property"
            yield from map(self.digest, (value.fget, value.fset, value.fdel))
        elif cls is staticmethod or cls is classmethod:
            yield cls.__name__.encode()
            yield self.digest(value.__func__)
        elif isinstance(value, functools.partial):
            yield self._named(b"partial", cls)
            keywords = [(name, value.keywords[name]) for name in sorted(value.keywords)]
            yield from map(self.digest, (value.func, value.args, keywords))
            if value.__dict__:
                yield from self._attributes(cls, value.__dict__)
        elif isinstance(value, functools._lru_cache_wrapper):
            # What it calls: `__wrapped__` is another function, where a decorator has set it.
            yield b"lru_cache"
            called = [one for one in gc.get_referents(value) if callable(one)]
            yield from (self.digest(one) for one in called if not isinstance(one, type))
        elif isinstance(value, np.ufunc):
            yield from self._ufunc(value)
        elif is_stateless(value):
            yield self._named(b"stateless", cls)
        else:
            yield from self._other(value)

    def _sequence(self, values: Any) -> Iterator[bytes]:
        yield str(len(values)).encode()
        if _PLAIN.issuperset(map(type, values)):
            # Without references to objects that came before, in this version of the format.
            if self._left is not None and sum(map(_length, values)) > self._left:
                raise TooLargeError
            if len(values) <= _MOST_NAMED:
                for value in values:
                    if type(value) is str and "{" in value:
                        self.found.add_template(value)
            yield self._data([b"plain"], [marshal.dumps(list(values), 0)])
        else:
            for number, value in enumerate(values):
                if type(value) in _PLAIN:
                    yield self._plain(value)
                else:
                    self._where.append(number)  # where it fails, the message tells
                    yield self.digest(value)
                    self._where.pop()

    def _array(self, value: Any) -> bytes:
        known = self._leaves.get(id(value))
        if known is not None:
            return known[1]
        dtype = value.dtype
        kind = self._named(b"array", type(value)) if type(value) is not np.ndarray else b"array"
        head = [kind, dtype.str.encode(), str(dtype).encode(), str(value.shape).encode()]
        if dtype.hasobject or dtype.kind == "T":  # which holds pointers, too
            return _hashed([*head, *self._sequence(np.asarray(value).ravel().tolist())])
        if self._left is not None and value.nbytes > self._left:
            raise TooLargeError
        found = self._data(head, _chunks_of(value))
        if value.nbytes >= _LEAF:
            self._leaves[id(value)] = (value, found)
        return found

    def _tensor(self, value: Any) -> bytes:
        import torch

        known = self._leaves.get(id(value))
        if known is not None:
            return known[1]
        head = [self._named(b"tensor", type(value)), str(value.dtype).encode()]
        head.append(str(tuple(value.shape)).encode())
        if value.is_quantized:  # both numbers and what they stand for: its scales have many forms
            found = _hashed([*head, *map(self.digest, (value.int_repr(), value.dequantize()))])
            self._leaves[id(value)] = (value, found)
            return found
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        found = self._data(head, _chunks_of(plain.reshape(-1).view(torch.uint8).numpy()))
        self._leaves[id(value)] = (value, found)
        return found

    def _is_code(self, value: Any) -> bool:
        """Return whether a value is a function or class of the program: it then becomes a part."""
        if not self._has_code:
            return False
        if isinstance(value, type):
            return self._package(value.__module__) is None
        return type(value) is types.FunctionType and self._package_of(value) is None

    def _package_of(self, function: types.FunctionType) -> str | None:
        name = function.__globals__.get("__name__", function.__module__)
        file = function.__globals__.get("__file__")
        return self._package(name or "", file if isinstance(file, str) else None)

    def _package(self, module: str, file: str | None = None) -> str | None:
        """Note the package of a module; return its name, or ``None`` for the program itself."""
        package = package_of(module, file)
        if package is None:
            return None
        self.packages[package.name] = package.version
        return package.name

    def _label(self, value: Any) -> str:
        known = self._labels.get(id(value))
        if known is not None:
            return known[1]
        module = value.__module__
        if type(value) is types.FunctionType:
            module = value.__globals__.get("__name__", module)
        name = f"{module_name(module or '')}.{value.__qualname__}"
        label = self._free(name)
        self._labels[id(value)] = (value, label)
        define = self._define_class if isinstance(value, type) else self._define_function
        self._pending.append(lambda: define(label, value))
        return label

    def _free(self, name: str) -> str:
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def _named(self, kind: bytes, cls: Any) -> bytes:
        """Identify a class or function by its name; one of the program becomes a part."""
        if self._is_code(cls):
            return _hashed([kind, self._label(cls).encode()])
        if self._has_code:
            self._package(cls.__module__)
            name = f"{cls.__module__}.{cls.__qualname__}"
        else:
            name = f"{module_name(cls.__module__)}.{cls.__qualname__}"
        return _hashed([kind, name.encode()])

    def _part(self, name: str, value: Any) -> None:
        with self._at(name):
            found = self.digest(value)
        for one, inner in self._inside(name, value):
            # It is a part, too, and comes first: a message names it.
            if one not in self.parts and len(self.parts) < _MOST_PARTS:
                self.parts[one] = _described(one, inner, self.digest(inner))
        self.parts[name] = _described(name, value, found)

    def _inside(self, name: str, value: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
        """Yield the named values inside a value, as far as a user has chosen the names."""
        cls = type(value)
        named: Mapping[str, Any] = {}
        if cls is types.MethodType:
            yield from self._inside(name, value.__self__, depth)
        elif cls is dict:
            named = value if all(type(key) is str for key in value) else {}
        elif isinstance(value, functools.partial):
            named = value.keywords
        elif self._has_code and (
            f"{cls.__module__}.{cls.__qualname__}" in _NAMESPACES
            or package_of(cls.__module__) is None
        ):
            may_prune = self._may_prune(cls)
            named = getattr(value, "__dict__", {}) if _is_plainly_reduced(cls) else {}
            named = {
                key: one for key, one in named.items() if not (may_prune and self._is_unread(key))
            }
        if len(named) <= _MOST_NAMED and depth:
            for key in sorted(named):
                yield from self._inside(f"{name}.{key}", named[key], depth - 1)
                yield f"{name}.{key}", named[key]

    @contextmanager
    def _at(self, name: str) -> Iterator[None]:
        """Note which part the walk has reached, for error messages."""
        before, self._where = self._where, [name]
        yield
        self._where = before  # where it fails, the message tells

    def _place_text(self) -> str:
        first, *rest = self._where or ["it"]
        inner = [f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest]
        return f"{first}{''.join(inner)}"

    # Functions

    def _function(self, value: types.FunctionType) -> Iterator[bytes]:
        if not self._has_code:
            yield self._named(b"function", value)
        elif self._package_of(value) is None:
            yield b"function"
            yield self._label(value).encode()
        else:
            module = value.__globals__.get("__name__", value.__module__) or ""
            yield f"installed {module}.{value.__qualname__}".encode()
            if not _is_offered(value, module):
                # It was made by a function there, such as a decorator, of things of the program.
                for cell in value.__closure__ or ():
                    yield from self._cell(cell)
                yield from map(self.digest, (value.__defaults__, value.__kwdefaults__))
                wrapped = value.__dict__.get("__wrapped__")
                if wrapped is not None:
                    yield self.digest(wrapped)

    def _cell(self, cell: types.CellType) -> Iterator[bytes]:
        try:
            contents = cell.cell_contents
        except ValueError:  # it is not filled yet
            yield b"empty"
        else:
            yield self.digest(contents)

    def _define_function(self, label: str, function: types.FunctionType) -> None:
        code = function.__code__
        reading = reading_of(code, keeps_annotations=self._keeps_annotations)
        self.found.add(reading)
        self.parts[label] = ""  # it comes before what it reads
        content = [b"".join(self._code(code))]
        values: list[tuple[str, Any]] = []
        defaults = function.__defaults__ or ()
        named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in (*zip(named, defaults, strict=False), *_sorted(function.__kwdefaults__)):
            values.append((f"{label} default {name}", value))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                values.append((f"{label} closure {name}", cell.cell_contents))
            except ValueError:
                values.append((f"{label} closure {name}", None))
        for name, value in _sorted(function.__dict__):
            if name != "__wrapped__" or not any(value is one for _, one in values):
                values.append((f"{label}.{name}", value))
        for name, value in values:
            content.append(
                f"{name.removeprefix(label)}: {self._described_part(name, value)}".encode()
            )
        if self._keeps_annotations and function.__annotations__:
            self._part(f"{label} annotations", function.__annotations__)
        content += self._globals(function, reading)
        self.parts[label] = f"code {_hashed(content).hex()}"

    def _described_part(self, name: str, value: Any) -> str:
        """Make a value a part, unless it is code, which has parts of its own. Returns what stands
        for it where it is used."""
        if isinstance(value, types.ModuleType) or self._is_code(value):
            with self._at(name):
                return self.digest(value).hex()
        self._part(name, value)
        return ""

    def _globals(self, function: types.FunctionType, reading: NamesRead) -> Iterator[bytes]:
        """Yield what a function reads by global names; the values become parts."""
        namespace = function.__globals__
        place = namespace.get("__name__") or ""
        is_open = _reads_any(reading)
        named = dict.fromkeys(reading.globals)
        if _reads_namespace(reading):
            self._whole_module(place)
            named |= dict.fromkeys(sorted(reading.words | reading.attributes))
        elif not _BY_TEXT.isdisjoint(reading.attributes):
            named |= dict.fromkeys(sorted(reading.words))
        for name in named:
            if name in namespace:
                yield name.encode()
                yield self._global(place, name, namespace[name], reading, is_open=is_open)
        package = namespace.get("__package__") or place.rpartition(".")[0]
        for one in reading.imports:
            self._imported(one, package)

    def _global(
        self, place: str, name: str, value: Any, reading: NamesRead, *, is_open: bool
    ) -> bytes:
        """A global that some code reads. Returns what stands for it there.

        Args:
            place: the module that has it.
            name: its name there.
            value: what it is.
            reading: what that code reads.
            is_open: whether that code may read any attribute of it.
        """
        if isinstance(value, types.ModuleType):
            if self._package(value.__name__, file_of(value.__name__)) is not None:
                return value.__name__.encode()
            return self._read_module(value, reading, is_open=is_open)
        if self._is_code(value):
            return self.digest(value)
        if name in _OF_MODULES:  # another one if the module is run, or the program was moved
            return module_name(place).encode()
        key = (place, name)
        if key not in self._globals_taken:
            label = self._globals_taken[key] = self._free(f"{module_name(place)}.{name}")
            self._part(label, value)
        return self._globals_taken[key].encode()

    def _read_module(self, module: types.ModuleType, reading: NamesRead, *, is_open: bool) -> bytes:
        """Return a module of the program by the attributes that some code reads."""
        found = [module_name(module.__name__).encode()]
        if id(module) in self._reading:  # modules may have each other
            return found[0]
        attributes = reading.attributes
        if not _BY_TEXT.isdisjoint(attributes):
            attributes |= reading.words
        names = [name for name in sorted(attributes) if name in vars(module)]
        if is_open or not names:
            self._whole_module(module.__name__)
        self._reading.add(id(module))
        for name in names:
            value = vars(module)[name]
            found.append(name.encode())
            found.append(self._global(module.__name__, name, value, reading, is_open=False))
        self._reading.discard(id(module))
        return _hashed(found)

    def _imported(self, one: Import, package: str) -> None:
        """Note what a function imports when called: a package, or a whole module of the program."""
        module = one.module
        if one.level:
            base = package.rsplit(".", one.level - 1)[0] if package else ""
            module = f"{base}.{module}".strip(".") if module else base
        candidates = [module, *(f"{module}.{name}" for name in one.names)]
        for name in candidates:
            file = file_of(name)
            if (file is not None or name in sys.modules) and self._package(name, file) is None:
                self._whole_module(name)
            elif name == module:
                self._package(name, file)

    def _whole_module(self, name: str) -> None:
        label = f"module {module_name(name) if name in _SCRIPTS else name}"
        if label in self.parts:
            return
        self.parts[label] = ""
        file = file_of(name)
        data = None if file is None else source_of(file)
        if file is None or data is None:
            return
        try:
            code = compile(data, "<module>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # it is compiled
            self.parts[label] = _hashed([data]).hex()
            return
        reading = reading_of(code, keeps_annotations=self._keeps_annotations)
        self.found.add(reading)
        self.parts[label] = f"code {_hashed(self._code(code)).hex()}"
        is_package = os.path.basename(file).startswith("__init__.")
        package = name if is_package else name.rpartition(".")[0]
        for one in reading.imports:
            self._imported(one, package)

    def _code(self, code: types.CodeType) -> Iterator[bytes]:
        yield b"code"
        yield from parts_of_code(
            code,
            self.digest,
            keeps_texts=self._keeps_texts,
            keeps_annotations=self._keeps_annotations,
        )

    def _module(self, module: types.ModuleType) -> Iterator[bytes]:
        """Yield what identifies a module that is a value: any attribute of it may be read."""
        yield b"module"
        yield module_name(module.__name__).encode()
        file = file_of(module.__name__)
        if self._has_code and self._package(module.__name__, file) is None:
            self._whole_module(module.__name__)
            if file is None and module.__name__ not in _SCRIPTS:  # it was made while others ran
                found = vars(module)
                yield self.digest({one: found[one] for one in sorted(found) if one[:2] != "__"})

    def _method(self, value: types.MethodType) -> Iterator[bytes]:
        yield b"bound"
        owner, name = value.__self__, getattr(value, "__name__", "")
        if not isinstance(owner, type) and _is_of_module(value, name, type(owner).__module__):
            yield f"{type(owner).__module__}.{name}".encode()
            return
        yield self.digest(value.__func__)
        yield self.digest(owner)

    def _builtin(self, value: Any) -> Iterator[bytes]:
        owner, name = getattr(value, "__self__", None), value.__name__
        yield b"builtin"
        yield value.__qualname__.encode()
        if owner is None or isinstance(owner, types.ModuleType):
            module = getattr(value, "__module__", None) or "builtins"
            yield module.encode()
            if self._has_code and self._package(module) is None:
                self._whole_module(module)
        elif not _is_of_module(value, name, type(owner).__module__):
            yield self.digest(owner)

    def _ufunc(self, value: Any) -> Iterator[bytes]:
        yield f"ufunc {value.__name__}".encode()
        places: tuple[str, ...] = ("numpy", "scipy.special")
        if not any(resolved(place, value.__name__) is value for place in places):
            places = tuple(sys.modules)
            if not any(resolved(place, value.__name__) is value for place in places):
                raise self._unknown(value, "the function that it was made of")

    # Classes and objects

    def _define_class(self, label: str, cls: type) -> None:
        self.parts[label] = ""
        content = [self._named(b"base", base) for base in cls.__bases__]
        if type(cls) is not type:
            content.append(self._named(b"metaclass", type(cls)))
        if issubclass(cls, enum.Enum):
            members = cls.__members__
            content.append(repr([(name, one.name) for name, one in members.items()]).encode())
            for name, member in members.items():
                self._part(f"{label}.{name}", member.value)
                for added, value in _sorted(vars(member)):
                    if not (added.startswith("_") and added.endswith("_")):
                        self._part(f"{label}.{name}.{added}", value)
        content += [self._named(b"registered", one) for one in _registered(cls)]
        found = dict(cls.__dict__)
        for name in sorted(found):
            value = found[name]
            if name in _OF_CLASSES and not (name == "__annotations__" and self._keeps_annotations):
                continue
            if issubclass(cls, enum.Enum) and _is_of_enum(name, value, cls):
                continue
            is_special = name.startswith("__") and name.endswith("__")
            if name == "__annotations__":
                pass
            elif is_special and name not in _DATA_OF_CLASSES and not _is_method(value):
                continue
            content.append(name.encode())
            if name == "__match_args__":  # what `case` reads by position
                self.found.attributes |= set(map(str, value))
            if _is_method(value):
                with self._at(f"{label}.{name}"):
                    content.append(self.digest(value))
            elif is_special or not (self._may_prune(cls) and self._is_unread(name)):
                self._part(f"{label}.{name}", value)
        self.parts[label] = f"class {_hashed(content).hex()}"

    def _is_unread(self, name: str) -> bool:
        """Whether no code that was reached reads an attribute of this name."""
        names = self._names
        if names is None or names.is_open or name.startswith("__"):
            return False
        return name not in names.attributes

    def _may_prune(self, cls: type) -> bool:
        """Return whether only code that the walk sees reads the attributes of an object."""
        found = self._prunable.get(cls)
        if found is None:
            found = self._prunable[cls] = self._is_read_by_code_alone(cls)
        return found

    def _is_read_by_code_alone(self, cls: type) -> bool:
        if not self._has_code or self._names is None or self._names.is_open:
            return False
        return all(
            f"{base.__module__}.{base.__qualname__}" in _OPEN_BASES
            or base.__module__ in _OPEN_MODULES
            or (package_of(base.__module__) is None and "__dataclass_fields__" not in vars(base))
            for base in cls.__mro__
        )

    def _other(self, value: Any) -> Iterator[bytes]:
        cls = type(value)
        opened = open_file(value)
        if opened is not None:
            yield self._named(b"file", cls)
            yield from _identity_of_file(opened.path)
            return
        cure = cure_of(value)
        if cure is not None:
            raise self._unknown(value, cure)
        if cls in (operator.attrgetter, operator.methodcaller):
            self.found.is_open = True
        if hasattr(cls, "__code__") or cls.__name__ == "cython_function_or_method":
            yield from self._compiled(value)
            return
        if not isinstance(value, io.IOBase | np.ndarray | np.generic) and not hasattr(
            cls, "layout"
        ):
            self._simple.add(cls)
        yield from self._object(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        """Yield what identifies an object, as its reducer takes it apart."""
        cls = type(value)
        reduction = self._reduced(value)
        if isinstance(reduction, str):
            module = getattr(value, "__module__", None) or cls.__module__
            self._package(module)
            yield f"global {module_name(module)}.{reduction}".encode()
            return
        given: list[Any] = [*reduction, None, None, None]
        make, arguments, state, items, pairs = given[:5]
        yield self._named(b"object", cls)
        yield self.digest(make)
        yield from self._sequence(arguments)
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            slots = state[1]
            yield from self._attributes(cls, {**(state[0] or {}), **slots})
        elif isinstance(state, dict):
            yield from self._attributes(cls, state)
        else:
            yield self.digest(state)
            kept = _added_to(value) if _forgets(cls) else None
            if kept:  # as arrays and dates forget what a subclass has added
                yield from self._attributes(cls, kept)
        if items is not None:
            yield from self._sequence(list(items))
        if pairs is not None:
            for key, one in pairs:
                yield self.digest(key)
                yield self.digest(one)

    def _attributes(self, cls: type, state: Mapping[Any, Any]) -> Iterator[bytes]:
        if not all(type(name) is str for name in state):
            yield self.digest(dict(state))
            return
        may_prune = self._may_prune(cls)
        for name in sorted(state):
            if may_prune and self._is_unread(name):
                continue
            yield name.encode()
            self._where.append(name)
            yield self.digest(state[name])
            self._where.pop()

    def _compiled(self, value: Any) -> Iterator[bytes]:
        """Yield what identifies a compiled function: the function it was made of, or its name."""
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "py_func", None)
        if isinstance(wrapped, types.FunctionType):
            yield self._named(b"compiled", type(value))
            yield self.digest(wrapped)
            return
        module = getattr(value, "__module__", None) or ""
        yield f"compiled {module_name(module)}.{value.__qualname__}".encode()
        if self._has_code and self._package(module) is None:
            self._whole_module(module)

    def _reduced(self, value: Any) -> Any:
        try:
            if self._reducers is not None:
                reduce = self._reducers.get(type(value))
            else:
                reduce = copyreg.dispatch_table.get(type(value))
            return value.__reduce_ex__(4) if reduce is None else reduce(value)
        except RecursionError:
            raise
        except Exception as error:
            raise self._unknown(value, None) from error

    def _unknown(self, value: Any, cure: str | None) -> UnknownValueError:
        cls = type(value)
        name = (
            cls.__qualname__
            if cls.__module__ == "builtins"
            else (f"{cls.__module__.partition('.')[0].lstrip('_')}.{cls.__qualname__}")
        )
        return UnknownValueError(self._place_text(), f"{_article(name)} {name}", cure)


def digest_of_value(value: Any, *, most: int | None = None) -> bytes | None:
    """The digest of a value without code; ``None`` if it cannot be compared.

    Args:
        value: the value.
        most: how many bytes to look at, at most.

    Raises:
        TooLargeError: there are more.
    """
    try:
        return Walk(has_code=False, most=most).digest(value)
    except (UnknownValueError, RecursionError):
        return None


def _described(name: str, value: Any, digest: bytes) -> Any:
    """Describe a value in plain JSON types: the value itself if it is short, or its digest."""
    text = _short(name, value)
    if text is not None:
        return text
    cls = type(value)
    if cls.__module__.partition(".")[0].lstrip("_") in _SHOWN or isinstance(value, np.generic):
        shown = repr(value)
        if len(shown) <= _LONGEST and not _SECRET.search(name) and without_secrets(shown) == shown:
            return f"{shown} ({digest.hex()[:16]})"
    return f"{cls.__qualname__} {digest.hex()}"


def described_option(value: Any) -> Any:
    """Describe an option of the user in plain JSON types: as it is if short, or as a digest."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    if isinstance(value, list | tuple) and len(value) <= _LONGEST:
        return [described_option(one) for one in value]
    if isinstance(value, Mapping) and len(value) <= _LONGEST:
        if all(isinstance(key, str) for key in value):
            return {key: described_option(one) for key, one in value.items()}
        return [[described_option(key), described_option(one)] for key, one in value.items()]
    if type(value) is str and len(value) <= 8 * _LONGEST:
        return value
    if value is None or type(value) is bool or (type(value) is int and abs(value) < 2**53):
        return value
    if isinstance(value, type) or type(value) is float or isinstance(value, np.dtype):
        return value.__qualname__ if isinstance(value, type) else str(value)
    if isinstance(value, Set):
        return sorted(map(str, map(described_option, value)))
    found = digest_of_value(value)
    return f"{type(value).__qualname__} {'' if found is None else found.hex()[:16]}".strip()


def _short(name: str, value: Any, depth: int = 4) -> Any:
    """A value as a message shows it, if that tells it from all others; else ``None``.

    Text that may be a secret is not shown.
    """
    cls = type(value)
    if value is None or cls is bool or (cls is int and abs(value) < 2**53):
        return value
    if cls is float or cls is complex:
        return repr(value)
    if cls is str and len(value) <= _LONGEST and not _SECRET.search(name):
        is_open = without_secrets(value) == value and not _seems_random(value)
        return repr(value) if is_open else None
    if (cls is list or cls is tuple) and depth:
        parts = [_short(name, one, depth - 1) for one in value] if len(value) <= 8 else [None]
        if all(part is not None or one is None for part, one in zip(parts, value, strict=False)):
            text = repr(value)
            return text if len(text) <= _LONGEST and len(parts) == len(value) else None
    return None


def _seems_random(text: str) -> bool:
    """Return whether a text looks like a randomly drawn key."""
    has = {bool(one.isdigit()) for one in text}
    return len(text) >= 20 and len(has) == 2 and not re.search(r"[\s/\\.]", text)


def _chunks_of(array: Any) -> Iterator[Any]:
    """Yield the bytes of an array in its order, without copying all of it at once."""
    if not array.size or not array.dtype.itemsize:
        return
    if array.flags.c_contiguous:
        flat = np.asarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, len(flat), _CHUNK):
            yield flat[begin : begin + _CHUNK]
    elif array.ndim <= 1 or array[0].nbytes <= _CHUNK:
        size = max(1, _CHUNK // max(1, array[0].nbytes))
        for begin in range(0, len(array), size):
            yield from _chunks_of(np.ascontiguousarray(array[begin : begin + size]))
    else:
        for one in array:
            yield from _chunks_of(one)


def _hashed(parts: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=_SIZE)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _bytes_of(value: Any) -> bytes:
    cls = type(value)
    if cls is str:
        return value.encode("utf-8", "surrogatepass")  # type: ignore[no-any-return]
    if cls is bytes:
        return value  # type: ignore[no-any-return]
    if cls is int:
        return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)  # type: ignore[no-any-return]
    if cls is float:
        return struct.pack("<d", value)
    return repr(value).encode()


def _length(value: Any) -> int:
    return len(value) if type(value) in (str, bytes) else 8


def _is_whole(value: Any) -> bool:
    """Whether an array is all that the object is."""
    return type(value) in (np.ndarray, np.memmap)


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    is_nested = value.is_nested
    return value.layout is torch.strided and not is_nested and value.device.type != "meta"


def _is_of_module(value: Any, name: str, module: str) -> bool:
    """Whether a bound method is what its module offers as a function, such as ``random.random``."""
    places = [module, module.rpartition(".")[0], *(("numpy.random",) if "mtrand" in module else ())]
    found = (resolved(place, name) for place in places if place in sys.modules)
    return any((one == value) is True for one in found)


def _is_offered(function: types.FunctionType, module: str) -> bool:
    """Whether an installed module offers a function under its name. That of a function which a
    decorator has made is the name of what it was made of."""
    name, other = function.__qualname__, function.__module__ or ""
    if resolved(module, name) is function:
        return True
    return package_of(other) is not None and resolved(other, name) is function


def _is_plainly_reduced(cls: type) -> bool:
    """Return whether pickle takes all attributes of an object."""
    names = ("__getstate__", "__reduce__", "__reduce_ex__")
    return all(getattr(cls, name, None) is getattr(object, name, None) for name in names)


def _forgets(cls: type) -> bool:
    """Return whether a class of the program leaves the pickling of its objects to a C class."""
    names = {"__getstate__", "__reduce__", "__reduce_ex__"}
    ours = [base for base in cls.__mro__ if package_of(base.__module__) is None]
    return bool(ours) and all(names.isdisjoint(vars(base)) for base in ours)


def _added_to(value: Any) -> dict[str, Any]:
    """Return the attributes, and slots, that classes of the program have added to an object."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType and package_of(base.__module__) is None:
                found[name] = getattr(value, name, None)
    return found


def _registered(cls: type) -> list[type]:
    """Return the virtual subclasses of an abstract class, sorted by name."""
    dump = getattr(abc, "_get_dump", None)
    if dump is None or not isinstance(cls, abc.ABCMeta):
        return []
    found = [one() for one in dump(cls)[0]]
    classes = [one for one in found if one is not None]
    return sorted(classes, key=lambda one: (one.__module__, one.__qualname__))


def _reads_any(reading: NamesRead) -> bool:
    """Return whether code may read any attribute. A method `eval`, as models have, does not."""
    return not _DYNAMIC.isdisjoint(reading.globals) or not _DYNAMIC.isdisjoint(
        reading.attributes - {"eval"}
    )


def _reads_namespace(reading: NamesRead) -> bool:
    """Whether code may read any global variable of its module."""
    if not _OF_NAMESPACES.isdisjoint(reading.globals):
        return True
    return "modules" in reading.attributes and "sys" in reading.globals


def _is_method(value: Any) -> bool:
    kinds = (
        types.FunctionType,
        staticmethod,
        classmethod,
        property,
        functools.cached_property,
        functools.partialmethod,
        functools.singledispatchmethod,
        functools._lru_cache_wrapper,
        type,
        *_METHODS,
    )
    return isinstance(value, kinds)


def _is_of_enum(name: str, value: Any, cls: type[enum.Enum]) -> bool:
    """Return whether an attribute of an enum is a member, or belongs to the `enum` machinery."""
    is_kept = name.startswith("_") and name.endswith("_") and not name.startswith("__")
    return name in cls.__members__ or (is_kept and not _is_method(value))


def _sorted(mapping: Any) -> list[tuple[str, Any]]:
    return sorted(mapping.items()) if mapping else []


def _identity_of_file(path: str) -> Iterator[bytes]:
    yield path.encode("utf-8", "surrogateescape")
    try:
        status = os.stat(path)
    except OSError:
        yield b"missing"
    else:
        yield f"{status.st_size} {status.st_mtime_ns}".encode()


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


class _Reducers:
    """The reducers of cloudpickle and of copyreg."""

    def __init__(self) -> None:
        cloudpickle = required("cloudpickle", "parquet", "a cache in files")
        self._pickler = cloudpickle.CloudPickler(io.BytesIO(), 4)

    def get(self, cls: type) -> Callable[[Any], Any] | None:
        found: Callable[[Any], Any] | None = self._pickler.dispatch_table.get(cls)
        return found


@functools.cache
def _reducers() -> _Reducers:
    return _Reducers()
