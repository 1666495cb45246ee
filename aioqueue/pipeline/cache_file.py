"""The files of a cache: what writes examples into them, and what reads them again.

They are Arrow files (IPC), which hold examples exactly: dtypes, shapes and Python's types. Readers
map a file into memory, privately, and make examples of that memory without a copy. Who writes into
them changes only that mapping.

The first examples decide a *layout*: a tree of containers, with what each leaf is. It is in the
metadata of the schema. Each leaf has a column; arrays have a second one for their shapes. No code
is stored or run: of a class, the layout has the name. What has no place in a layout is refused.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from itertools import accumulate, chain, repeat
from operator import getitem
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioqueue import DataLossError, InvalidArgumentError
from aioqueue.base.extras import required
from aioqueue.base.json_files import (
    COUNT,
    MAX_DEPTH,
    DocumentError,
    Schema,
    check_fields,
    is_json,
    parsed,
)
from aioqueue.core.elements.trees import Branch, branch_of, path_text, record_of
from aioqueue.core.elements.trees import Path as TreePath
from aioqueue.errors import with_article
from aioqueue.pipeline.batches.arrow import dtype_by_name, is_storable, name_of_dtype
from aioqueue.pipeline.batches.batch_shape import BatchShape, Listed, container_paths
from aioqueue.pipeline.sink import RowWriter, Sink

_PURPOSE: Final = "a cache in files"
_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 1024
_BATCH_BYTES: Final = 2**23
_FIRST_BYTES: Final = 2**22
_MOST_BYTES: Final = 2**28
"""Of a file. The first ones are small: readers wait until a file is whole, and a stop costs it."""
_UNBOUNDED: Final = 2**62


class CacheSink(Sink, is_kind=False):
    """Where a cache puts the examples: a local folder."""

    _function = "cache"
    _format = "cache 1"
    _suffix = ".arrow"
    _ends_by_itself = True
    _overwrite = "on_stale='rebuild'"

    _carried = Schema({"files": COUNT})

    def __init__(self, path: Any) -> None:
        super().__init__(path, _UNBOUNDED, False)
        self._pa = required("pyarrow", "parquet", _PURPOSE)

    def _writer(self, carried: dict[str, Any]) -> RowWriter:
        return _CacheWriter(self._pa, carried.get("files", 0))


class _CacheWriter(RowWriter):
    """Writes record batches. A file ends when it is large, or when examples need another layout.

    Args:
        pa: the module pyarrow.
        files: how many files earlier runs have written.
    """

    rows_at_once = _FIRST_ROWS

    def __init__(self, pa: Any, files: int) -> None:
        self._pa = pa
        self._files = files
        self._path: Path | None = None
        self._layout: RowLayout | None = None
        self._lists: list[list[TreePath]] = []
        self._file: Any = None
        self._bytes = 0

    def open(self, path: Path) -> None:
        self._path, self._layout, self._bytes, self.is_full = path, None, 0, False

    def accepts(self, rows: Sequence[Any]) -> bool:
        return self._layout is None or self._layout.has(rows)

    def write(self, rows: Sequence[Any], first: int) -> None:
        if self._layout is None:
            self._layout = RowLayout.of(rows, first)
            self._lists = container_paths(rows[0], self.shape)
        batch = self._layout.batch_of(self._pa, rows, self._lists)
        if self._file is None:
            self._file = self._pa.ipc.new_file(str(self._path), batch.schema)
        self._file.write_batch(batch)
        self._bytes += batch.nbytes
        self.is_full = self._bytes >= min(_MOST_BYTES, _FIRST_BYTES << min(self._files, 32))
        each = max(1, batch.nbytes // len(rows))
        self.rows_at_once = max(1, min(_MOST_ROWS, _BATCH_BYTES // each, 2 * self.rows_at_once))

    def finish(self) -> None:
        file, self._file = self._file, None
        file.close()
        self._files += 1

    def carried(self) -> dict[str, Any]:
        return {"files": self._files}

    def abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(Exception):
                file.close()


def rows_of_file(
    path: Path, begin: int, count: int, note: Callable[[BatchShape], object] = bool
) -> Iterator[list[Any]]:
    """The examples of a file, some at a time.

    Args:
        path: the file.
        begin: the number of the first one, in this file.
        count: how many the whole file has.
        note: called with what is known of them, if they are batches.

    Raises:
        DataLossError: the file is damaged.
        OSError: it cannot be read.
        ModuleNotFoundError: pyarrow is not installed.
    """
    pa = required("pyarrow", "parquet", _PURPOSE)
    with path.open("rb") as file:
        try:
            # Each reading has a mapping of its own: what a user writes into is in no later one.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise DataLossError(path=str(path), offset=0, fault="an empty file") from error
    try:
        buffer = pa.py_buffer(memory)
        arrow = pa.ipc.open_file(buffer)
        reader = ExampleReader(pa, RowLayout.in_schema(arrow.schema), memory, buffer.address)
        text = (arrow.schema.metadata or {}).get(_LISTS)
        lists = None if text is None else _checked_lists(parsed(text))
        batches = [arrow.get_batch(number) for number in range(arrow.num_record_batches)]
        ends = list(accumulate(batch.num_rows for batch in batches))
        if ends[-1:] != [count]:
            raise ValueError(f"{ends[-1:]} examples for {count}")
    except (pa.ArrowException, OSError, *_WRONG) as error:
        raise DataLossError(path=str(path), offset=0, fault=f"no cache file ({error})") from error
    for number, (batch, end) in enumerate(zip(batches, ends, strict=True)):
        if end > begin:
            try:
                batch.validate(full=True)  # pyarrow would follow invalid offsets
                rows = reader.rows(batch.slice(max(0, begin - end + batch.num_rows)))
            except InvalidArgumentError:
                raise
            except (pa.ArrowException, *_WRONG) as error:
                fault = f"damaged record batch {number} ({error})"
                raise DataLossError(path=str(path), offset=0, fault=fault) from error
            if lists is not None and rows:
                note(Listed(lists, rows[0]))
                lists = None
            yield rows


_WRONG: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration),
    *(TypeError, ValueError),
)
"""What a layout raises that does not fit its columns."""
_KEY: Final = b"aioqueue.layout"
_LISTS: Final = b"aioqueue.lists"
_NUMBERS: Final = "iuf"
"""The kinds of dtypes that Arrow stores as they are."""
_EXACT: Final[Mapping[str, type]] = {"mapping": dict, "tuple": tuple, "list": list}
"""Containers, which come back as just these types."""
_NAMED: Final = ("named tuple", "dataclass")
"""Containers of a class, which is found by its name."""
_BRANCHES: Final = (*_EXACT, *_NAMED)
_KNOWN: Final = (*_BRANCHES, "array", "objects", "scalar")
"""The kinds of values that have parts or dtypes."""
_IN_MEMORY: Final = "cache() without a path keeps any object, in memory"
_SIMPLE: Final = {bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes"}
_TYPES: Final = {
    "none": "null",
    "bool": "bool_",
    "int": "int64",
    "float": "float64",
    "str": "large_string",
    "bytes": "large_binary",
}
"""Arrow's functions that make the types of columns of simple values."""

Tree: TypeAlias = Any
"""A layout in plain JSON types: a dict whose ``"is"`` says what it is."""


class RowLayout(NamedTuple):
    """How examples are stored."""

    tree: Tree

    @classmethod
    def of(cls, rows: Sequence[Any], first: int) -> RowLayout:
        """The layout of some examples.

        Args:
            rows: one at least.
            first: the number of the first.

        Raises:
            InvalidArgumentError: they have none in common, or hold what cannot be stored.
        """
        try:
            return cls(_tree_of(rows, (), first))
        except RecursionError as error:
            got = f"row {first} or later: got containers in containers, too deep or without an end"
            raise InvalidArgumentError(f"{got}; expected fewer ({_IN_MEMORY})") from error

    @classmethod
    def in_schema(cls, schema: Any) -> RowLayout:
        """The layout of a file.

        Raises:
            ValueError: it has none.
            KeyError: it has no metadata for one.
        """
        tree = parsed((schema.metadata or {})[_KEY])
        _check_tree(tree)
        return cls(tree)

    def has(self, rows: Sequence[Any]) -> bool:
        """Return whether examples fit the layout."""
        return all(map(_fits, repeat(self.tree), rows))

    def batch_of(
        self, pa: Any, rows: Sequence[Any], lists: Sequence[Sequence[TreePath]] = ()
    ) -> Any:
        """A ``pyarrow.RecordBatch`` of examples that fit.

        Args:
            pa: the module pyarrow.
            rows: the examples.
            lists: where they have containers, if they are batches: see `container_paths`.
        """
        arrays: list[Any] = []
        _store(pa, self.tree, rows, arrays)
        if not arrays:  # of dicts without anything, say; a batch has as many rows as a column has
            arrays.append(pa.nulls(len(rows)))
        names = [str(number) for number in range(len(arrays))]
        fields = [pa.field(name, one.type) for name, one in zip(names, arrays, strict=True)]
        metadata = {_KEY: json.dumps(self.tree).encode("ascii")}
        if lists:
            metadata[_LISTS] = json.dumps(lists).encode("ascii")
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata))


class ExampleReader:
    """Makes examples of record batches.

    Args:
        pa: the module pyarrow.
        layout: of the examples.
        memory: the mapped file, which may be written to.
        address: where it is in memory.
    """

    def __init__(self, pa: Any, layout: RowLayout, memory: Any, address: int) -> None:
        self._pa = pa
        self._memory = memory
        self._address = address
        self.count: int = 0
        """How many examples are being made."""
        # It gets this reader with each call. If it kept it, the two would hold each other, and with
        # them the mapping and the descriptor of the file, until the cyclic collector came by.
        self._make: _Maker = _maker(layout.tree)

    def rows(self, batch: Any) -> list[Any]:
        """The examples of a ``pyarrow.RecordBatch`` of that file."""
        self.count = batch.num_rows
        return self._make(self, iter(batch.columns))

    def numbers(self, column: Any, dtype: Any) -> Any:
        """The memory of a column of numbers as an array, without a copy.

        Args:
            column: a ``pyarrow.Array``.
            dtype: of the array.
        """
        width = column.type.byte_width if hasattr(column.type, "byte_width") else None
        width = column.type.bit_width // 8 if width is None else width
        buffer = column.buffers()[-1]
        if buffer is None or not len(column):
            return np.empty(0, dtype)
        offset = buffer.address - self._address + column.offset * width
        dtype = np.dtype(dtype)
        count = len(column) * width // dtype.itemsize
        return np.frombuffer(self._memory, dtype, count, offset)


# Finding a layout.


def _tree_of(values: Sequence[Any], path: TreePath, first: int) -> Tree:
    found = [value for value in values if value is not None]
    if not found:
        return {"is": "none"}
    kinds = {_kind_of(value) for value in found}
    is_json = all(map(_is_json, found))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _BRANCHES and not (kind == "list" and is_json):
            return _branches(kind, values, path, first)
        if kind in ("array", "scalar", "objects"):
            return _arrays(kind, found, path, first)
        if kind in _SIMPLE.values() and all(map(is_storable, found)):
            return {"is": kind}
    if is_json:
        return {"is": "json"}
    numbered = [(number, one) for number, one in enumerate(values, first) if one is not None]
    strange = (one for one in numbered if _kind_of(one[1]) not in _KNOWN and not _is_json(one[1]))
    number, value = next(strange, numbered[0])
    others = "" if len(kinds) == 1 else f" (of {' and '.join(sorted(kinds))} here)"
    raise InvalidArgumentError(
        f"row {number}: got {with_article(type(value).__name__)}{_at(path)}{others}, which the"
        " files of a cache do not hold; expected dicts, lists, tuples and dataclasses of arrays,"
        f" numbers, strings, bytes and None, each row with the same ({_IN_MEMORY})"
    )


def _kind_of(value: Any) -> str:
    if type(value) is np.ndarray:
        return "objects" if value.dtype.hasobject else "array"
    if isinstance(value, np.generic):
        return "scalar"
    kind = type(value)
    branch = None if kind in _SIMPLE else branch_of(value)
    if branch is not None and (branch.kind in _NAMED or _EXACT.get(branch.kind) is kind):
        return branch.kind
    return _SIMPLE.get(kind, f"{kind.__module__}.{kind.__name__}")


def _branches(kind: str, values: Sequence[Any], path: TreePath, first: int) -> Tree:
    branches: list[Branch] = []
    for number, value in enumerate(values, first):
        branch = branch_of(value)
        if branch is None:
            raise InvalidArgumentError(
                f"row {number}: got None{_at(path)}, where other rows have a {kind}; expected the"
                " same in each row"
            )
        branches.append(branch)
        names = list(branches[0].keys)
        if list(branch.keys) != names:
            got, wanted = str(list(branch.keys)), str(names)
            if kind in ("tuple", "list"):
                got, wanted = (f"a {kind} of {len(keys)}" for keys in (branch.keys, names))
            raise InvalidArgumentError(
                f"row {number}: got {got}{_at(path)}; expected {wanted}, as the rows before it have"
                f" ({_IN_MEMORY})"
            )
    if kind == "mapping" and not all(type(name) is str for name in names):
        raise InvalidArgumentError(
            f"row {first}: got the keys {names}{_at(path)}; expected strings as names"
        )
    columns = zip(*(branch.parts for branch in branches), strict=True)
    named = zip(names, columns, strict=True)
    parts = [_tree_of(column, (*path, name), first) for name, column in named]
    tree: Tree = {"is": kind, "names": names, "parts": parts}
    if kind in _NAMED:
        tree["class"] = _class_name(values, names, path, first)
    return tree


def _class_name(values: Sequence[Any], names: list[str], path: TreePath, first: int) -> str:
    """Return the name by which the class of all these values is found again."""
    kind = type(values[0])
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _named_class(name) is not kind:
        raise InvalidArgumentError(
            f"row {first}: got {with_article(kind.__name__)}{_at(path)}; expected a class that a"
            " module defines, so that it can be found again"
        )
    for number, value in enumerate(values, first):
        if type(value) is not kind:
            raise InvalidArgumentError(
                f"row {number}: got {with_article(type(value).__name__)}{_at(path)}; expected"
                f" {with_article(kind.__name__)}, as the rows before it have"
            )
        if further := sorted({*getattr(value, "__dict__", {})} - {*names}):
            raise InvalidArgumentError(
                f"row {number}: got {with_article(kind.__name__)}{_at(path)} with the attributes"
                f" {further}; expected its fields {names} alone, because no other attribute is"
                " stored"
            )
    return name


def _arrays(kind: str, found: list[Any], path: TreePath, first: int) -> Tree:
    if kind == "objects":
        return _objects(found, path, first)
    kinds = {(value.dtype, value.ndim) for value in found}
    if len(kinds) > 1:
        text = " and ".join(sorted(f"{dtype} of {axes} axes" for dtype, axes in kinds))
        raise InvalidArgumentError(
            f"row {first} or later: got arrays{_at(path)} that differ: {text}; expected one dtype,"
            f" and one number of axes ({_IN_MEMORY})"
        )
    ((dtype, axes),) = kinds
    name = name_of_dtype(dtype) if dtype.itemsize else None  # an empty string of NumPy has no size
    if name is None:
        raise InvalidArgumentError(
            f"row {first}: got an array of {dtype}{_at(path)}, which the files of a cache do not"
            f" hold; expected numbers, times or strings ({_IN_MEMORY})"
        )
    return {"is": kind, "dtype": name, "axes": axes}


def _objects(found: list[Any], path: TreePath, first: int) -> Tree:
    """The layout of arrays of strings or bytes, as batches have them, or of NumPy's text."""
    kinds = {type(one) if is_storable(one) else None for each in found for one in each.flat}
    dtypes = {(value.dtype.char, value.ndim) for value in found}
    are_known = all(value.dtype == np.dtype(value.dtype.char) for value in found)
    if len(kinds) > 1 or not kinds <= {str, bytes} or len(dtypes) > 1 or not are_known:
        text = ", ".join(sorted(getattr(kind, "__name__", "lone surrogates") for kind in kinds))
        raise InvalidArgumentError(
            f"row {first} or later: got arrays of objects{_at(path)} ({text}); expected arrays of"
            " numbers, of strings or of bytes"
        )
    ((dtype, axes),) = dtypes
    of = "bytes" if kinds == {bytes} else "str"
    return {"is": "objects", "of": of, "axes": axes, "dtype": dtype}


_is_json: Final = partial(is_json, is_finite=False)


def _at(path: TreePath) -> str:
    return f" at {path_text(path)}" if path else ""


# Checking, storing and making again what has a layout.


_MOST_AXES: Final = 64
"""As many as NumPy's arrays have."""
_MOST_CHARACTERS: Final = 1000
"""Of the name of a dtype."""
_ARRAYS: Final = Schema({"is": str, "dtype": str, "axes": COUNT})
_CONTAINERS: Final = Schema({"is": str, "names": list, "parts": list})
_SCHEMAS: Final[Mapping[str, Schema]] = {
    **dict.fromkeys(_EXACT, _CONTAINERS),
    **dict.fromkeys(_NAMED, Schema({**_CONTAINERS.required, "class": str})),
    **dict.fromkeys(("array", "scalar"), _ARRAYS),
    "objects": Schema({**_ARRAYS.required, "of": str}),
    **dict.fromkeys(("json", *_TYPES), Schema({"is": str})),
}


def _check_tree(tree: Any) -> None:
    """Check the layout in a file before anything is made by it.

    Raises:
        DocumentError: no cache has written it.
    """
    kind = tree.get("is") if isinstance(tree, dict) else None
    schema = _SCHEMAS.get(kind) if isinstance(kind, str) else None
    if schema is None:
        raise DocumentError(f"a layout with the kind {str(kind)[:40]!r}")
    check_fields(tree, schema)
    if schema is _SCHEMAS["array"] or kind == "objects":
        # An array of more axes than there can be would take memory for its shape alone, and one of
        # strings of any length for its items.
        if tree["axes"] > _MOST_AXES or len(tree["dtype"]) > _MOST_CHARACTERS:
            raise DocumentError(f"arrays of {tree['axes']} axes of {tree['dtype'][:40]!r}")
        if kind == "objects" and not (tree["of"] in ("str", "bytes") and len(tree["dtype"]) == 1):
            raise DocumentError(f"arrays of {tree['of'][:40]!r} as {tree['dtype'][:40]!r}")
    if kind in _BRANCHES:
        names, parts = tree["names"], tree["parts"]
        of = int if kind in ("tuple", "list") else str
        if len(names) != len(parts) or not {of}.issuperset(map(type, names)):
            raise DocumentError(f"a {kind} of {len(parts)} parts with the names {str(names)[:40]}")
        for part in parts:
            _check_tree(part)


def _checked_lists(lists: Any) -> Sequence[Sequence[TreePath]]:
    """Check the paths of containers in a file.

    Raises:
        DocumentError: no cache has written them.
    """
    found = isinstance(lists, list) and all(
        isinstance(paths, list)
        and all(isinstance(path, list) and {str, int}.issuperset(map(type, path)) for path in paths)
        for paths in lists
    )
    if not found or len(lists) > MAX_DEPTH:
        raise DocumentError(f"the paths of containers {str(lists)[:40]!r}")
    return [[tuple(path) for path in paths] for paths in lists]


def _fits(tree: Tree, value: Any) -> bool:
    kind = tree["is"]
    if kind in _BRANCHES:
        branch = branch_of(value)
        if branch is None or branch.kind != kind or list(branch.keys) != tree["names"]:
            return False
        wanted = _named_class(tree["class"]) if kind in _NAMED else _EXACT[kind]
        is_alike = type(value) is wanted and {*getattr(value, "__dict__", ())} <= {*tree["names"]}
        return is_alike and all(map(_fits, tree["parts"], branch.parts))
    if value is None:
        return True
    if kind == "json":
        return _is_json(value)
    if kind in ("array", "scalar"):
        has_axes = _kind_of(value) == kind and value.ndim == tree["axes"]
        return bool(has_axes and name_of_dtype(value.dtype) == tree["dtype"])
    if kind == "objects":
        own = str if tree["of"] == "str" else bytes
        is_alike = _kind_of(value) == kind and value.ndim == tree["axes"]
        is_alike = is_alike and value.dtype == np.dtype(tree["dtype"])
        return is_alike and all(type(one) is own and is_storable(one) for one in value.flat)
    return bool(_SIMPLE.get(type(value)) == kind and is_storable(value))


def _store(pa: Any, tree: Tree, values: Sequence[Any], arrays: list[Any]) -> None:
    kind = tree["is"]
    if kind in _BRANCHES:
        part_of = getattr if kind == "dataclass" else getitem
        keys = range(len(tree["names"])) if kind == "named tuple" else tree["names"]
        for key, part in zip(keys, tree["parts"], strict=True):
            _store(pa, part, [part_of(value, key) for value in values], arrays)
    elif kind == "array":
        _store_arrays(pa, tree, values, arrays)
    elif kind == "objects":
        _store_objects(pa, tree, values, arrays)
    elif kind == "scalar":
        dtype = dtype_by_name(tree["dtype"])
        numbers = [np.zeros((), dtype)[()] if value is None else value for value in values]
        found = np.array(numbers, dtype)
        mask = [value is None for value in values]
        arrays.append(_plain(pa, found.view(_stored(dtype)).reshape(len(values), -1), mask))
    elif kind == "json":
        texts = [None if value is None else json.dumps(value) for value in values]
        arrays.append(pa.array(texts, pa.large_string()))
    else:
        arrays.append(pa.array(values, getattr(pa, _TYPES[kind])()))


def _stored(dtype: Any) -> Any:
    """The dtype in which the memory of an array is stored."""
    is_arrows = dtype.isbuiltin == 1 and dtype.kind in _NUMBERS and dtype.itemsize <= 8
    return dtype if is_arrows else np.dtype(np.uint8)


def _plain(pa: Any, found: Any, mask: list[bool]) -> Any:
    """Scalars as a column: of numbers, or of a fixed number of bytes."""
    masked = np.array(mask) if any(mask) else None
    if found.shape[1] == 1 and found.dtype != np.uint8:
        return pa.array(found[:, 0], mask=masked)
    flat = pa.array(found.reshape(-1))
    options = {} if masked is None else {"mask": pa.array(masked)}
    return pa.FixedSizeListArray.from_arrays(flat, found.shape[1], **options)


def _store_arrays(pa: Any, tree: Tree, values: Sequence[Any], arrays: list[Any]) -> None:
    dtype = dtype_by_name(tree["dtype"])
    stored = _stored(dtype)
    none = np.empty((0,) * tree["axes"], dtype)
    found = [none if value is None else value for value in values]
    flat = [np.ascontiguousarray(one).reshape(-1).view(stored) for one in found]
    offsets = np.zeros(len(flat) + 1, np.int64)
    np.cumsum([len(one) for one in flat], out=offsets[1:])
    numbers = np.concatenate(flat) if len(flat) > 1 else flat[0]
    arrays.append(_lists(pa, offsets, pa.array(numbers), values))
    _store_shapes(pa, tree, found, arrays)


def _lists(pa: Any, offsets: Any, flat: Any, values: Sequence[Any]) -> Any:
    mask = [value is None for value in values]
    options = {"mask": pa.array(mask)} if any(mask) else {}
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, **options)


def _store_shapes(pa: Any, tree: Tree, found: list[Any], arrays: list[Any]) -> None:
    if tree["axes"] > 1:
        shapes = np.array([one.shape for one in found], np.int64).reshape(-1)
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(shapes), tree["axes"]))


def _store_objects(pa: Any, tree: Tree, values: Sequence[Any], arrays: list[Any]) -> None:
    none = np.empty((0,) * tree["axes"], object)
    found = [none if value is None else value for value in values]
    offsets = np.zeros(len(found) + 1, np.int64)
    np.cumsum([one.size for one in found], out=offsets[1:])
    flat = list(chain.from_iterable(one.flat for one in found))
    arrays.append(_lists(pa, offsets, pa.array(flat, getattr(pa, _TYPES[tree["of"]])()), values))
    _store_shapes(pa, tree, found, arrays)


_Maker: TypeAlias = Callable[[ExampleReader, Iterator[Any]], list[Any]]


def _maker(tree: Tree) -> _Maker:
    """Return a function that makes the values of a layout from a reader's next columns."""
    kind = tree["is"]
    if kind in _BRANCHES:
        parts = [_maker(part) for part in tree["parts"]]
        together = _together(tree)

        def made(reader: ExampleReader, columns: Iterator[Any]) -> list[Any]:
            found = [part(reader, columns) for part in parts]
            return together(zip(*found, strict=True) if found else repeat((), reader.count))

        return made
    if kind == "array":
        return lambda reader, columns: list(_made_arrays(tree, reader, columns))
    if kind == "objects":
        return lambda reader, columns: list(_made_objects(tree, columns))
    if kind == "scalar":
        return lambda reader, columns: _made_scalars(tree, reader, next(columns))
    if kind == "json":
        return lambda reader, columns: [
            None if text is None else json.loads(text) for text in next(columns).to_pylist()
        ]
    if kind not in _TYPES:
        raise ValueError(f"a layout with the kind {kind!r}")
    return lambda reader, columns: next(columns).to_pylist()


def _together(tree: Tree) -> Callable[[Iterable[Any]], list[Any]]:
    """Return a function that builds containers from their parts."""
    names, kind = tree["names"], tree["is"]
    if kind == "mapping":
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]
    if kind in _EXACT:
        return lambda rows: list(map(_EXACT[kind], rows))
    found = _named_class(tree["class"])
    if found is None:
        raise InvalidArgumentError(
            f"path: got a cache of {tree['class']}, which is not imported; expected that your"
            " program imports it before"
        )
    is_named_tuple = isinstance(found, type) and issubclass(found, tuple)
    if not (is_named_tuple if kind == "named tuple" else is_dataclass(found)):
        # Of any other class, a stranger's file could make objects that do harm when they are gone.
        raise ValueError(f"{tree['class']} is no {kind}")
    make = found._make if kind == "named tuple" else partial(record_of, found, names)
    return lambda rows: list(map(make, rows))


def _named_class(text: str) -> Any:
    """Return a class by its name, if its module is already imported."""
    module, _, names = text.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _made_arrays(tree: Tree, reader: ExampleReader, columns: Iterator[Any]) -> Iterable[Any]:
    dtype = dtype_by_name(tree["dtype"])
    column = next(columns)
    offsets = column.offsets.to_numpy()
    first = int(offsets[0])
    values = column.values.slice(first, int(offsets[-1]) - first)
    numbers = reader.numbers(values, _stored(dtype))
    bounds = (offsets - first) * numbers.itemsize
    memory = numbers.view(np.uint8) if numbers.size else np.empty(0, np.uint8)
    shapes = _shapes(tree, columns, bounds // dtype.itemsize)
    count = len(shapes)
    is_alike = tree["axes"] and count and (shapes == shapes[0]).all()
    if is_alike and not column.null_count:
        whole = memory.view(dtype) if memory.size else np.empty(0, dtype)
        return list(whole.reshape(count, *shapes[0]))
    valid = column.is_valid().to_pylist()
    return _cut(memory, dtype, bounds.tolist(), shapes.tolist(), valid)


def _shapes(tree: Tree, columns: Iterator[Any], ends: Any) -> Any:
    """The shapes of arrays: of shape (n, axes)."""
    axes = tree["axes"]
    if axes < 2:  # then the length says it
        return np.diff(ends).reshape(-1, 1)[:, :axes]
    column = next(columns)
    flat = column.values.slice(column.offset * axes, len(column) * axes)
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), axes)


def _cut(
    memory: Any, dtype: Any, bounds: list[int], shapes: list[Any], valid: list[bool]
) -> Iterator[Any]:
    for at, (shape, is_there) in enumerate(zip(shapes, valid, strict=True)):
        if not is_there:
            yield None
            continue
        part = memory[bounds[at] : bounds[at + 1]]
        yield (part.view(dtype) if part.size else np.empty(0, dtype)).reshape(shape)


def _made_objects(tree: Tree, columns: Iterator[Any]) -> Iterator[Any]:
    column = next(columns)
    offsets = column.offsets.to_numpy()
    flat = column.values.slice(offsets[0], offsets[-1] - offsets[0]).to_pylist()
    bounds = (offsets - offsets[0]).tolist()
    shapes = _shapes(tree, columns, np.array(bounds)).tolist()
    valid = column.is_valid().to_pylist()
    for at, (shape, is_there) in enumerate(zip(shapes, valid, strict=True)):
        found = np.empty(bounds[at + 1] - bounds[at], object)
        found[:] = flat[bounds[at] : bounds[at + 1]]
        found = found.astype(tree["dtype"], copy=False)
        yield found.reshape(shape) if is_there else None


def _made_scalars(tree: Tree, reader: ExampleReader, column: Any) -> list[Any]:
    dtype = dtype_by_name(tree["dtype"])
    stored = column
    if hasattr(column.type, "list_size"):
        size = column.type.list_size
        stored = column.values.slice(column.offset * size, len(column) * size)
    numbers = reader.numbers(stored, _stored(dtype))
    found = list(numbers.view(dtype)) if numbers.size else []
    if not column.null_count:
        return found
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(found, valid, strict=True)]
