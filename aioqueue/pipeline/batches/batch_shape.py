"""What a pipeline knows of its batches: which lists in them are containers, and how many rows.

A list in a batch may be two things: a column with one row per example, as a `collate` of ``list``
makes it; or a container, where the examples are lists themselves. A batch does not say which. So
the stage that has made it says it, and the stages behind it carry that on, also past functions of
the user: a list that takes the place of a container, with as many parts, each with as many rows, is
a container, too. So is a list elsewhere that has the same containers in it: a batch may be taken
out of the pair that `enumerate` has made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.core.elements.structure import Structure
from aioqueue.core.elements.trees import MAX_DEPTH, Path, branch_of, leaves_of
from aioqueue.pipeline.batches.collation import Collator, examples_in, rows_of, structure_of_batch


class BatchShape(ABC):
    """What is known of the batches at one place of a pipeline.

    Args:
        rows: how many rows each has, except for the last of an epoch; ``None`` if that is unknown.
        within: what is known of the examples in them, if these are batches, too.
    """

    def __init__(self, rows: int | None = None, within: BatchShape | None = None) -> None:
        self.rows: int | None = rows
        self._within = within

    @property
    def within(self) -> BatchShape | None:
        """The shape of the examples, if these are batches, too."""
        return self._within

    def found_in(self, value: Any) -> set[Path]:
        """The paths of the lists in a batch that are containers, also where a function has put
        them elsewhere, as with ``pair[1]`` behind `enumerate`."""
        found = self.lists(value)
        return found | _moved(self.containers(), value, (), found)

    @abstractmethod
    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        """The paths of the lists in a batch that are containers and in their places.

        Args:
            value: the batch.
            path: where it is in the whole.
        """

    def containers(self) -> list[Structure]:
        """The lists that are containers, and have others in them: a list of nothing but columns
        looks like one of rows."""
        return []


class Collated(BatchShape):
    """Of batches that a collator has made."""

    def __init__(self, by: Collator, rows: int | None, within: BatchShape | None) -> None:
        super().__init__(rows, within)
        self._by = by

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        structure = self._by.structure
        return set() if structure is None else _lists(structure, value, path, self.rows)

    def containers(self) -> list[Structure]:
        structure = self._by.structure
        return [] if structure is None else _containers_in(structure)


class OwnBatches(BatchShape):
    """Of batches that a function of the user's has made: a list has one row per example."""

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        return set()


class Beside(BatchShape):
    """Of tuples of values that are known one by one.

    Args:
        parts: what is known of each.
    """

    def __init__(self, parts: Sequence[BatchShape | None]) -> None:
        super().__init__(next((one.rows for one in parts if one is not None and one.rows), None))
        self._parts = parts

    @property
    def within(self) -> BatchShape | None:
        parts = [None if one is None else one.within for one in self._parts]
        return Beside(parts) if any(parts) else None

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        if not isinstance(value, tuple) or len(value) != len(self._parts):
            return set()
        found: set[Path] = set()
        for at, (shape, part) in enumerate(zip(self._parts, value, strict=True)):
            if shape is not None:
                found |= shape.lists(part, (*path, at))
        return found

    def containers(self) -> list[Structure]:
        return [found for one in self._parts if one is not None for found in one.containers()]


class AnyOf(BatchShape):
    """Of values that come from several places.

    Args:
        shapes: what is known at each.
    """

    def __init__(self, shapes: Iterable[BatchShape | None]) -> None:
        known = [one for one in shapes if one is not None]
        super().__init__(min((one.rows for one in known if one.rows), default=None))
        self._known = known

    @property
    def within(self) -> BatchShape | None:
        shapes = [one.within for one in self._known]
        return AnyOf(shapes) if any(shapes) else None

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        return max((one.lists(value, path) for one in self._known), key=len, default=set())

    def containers(self) -> list[Structure]:
        return [found for one in self._known for found in one.containers()]


class Listed(BatchShape):
    """Of values for which only the paths are known.

    Args:
        paths: those of lists that are containers; then those in the examples, and so on, as
            `container_paths` returns them.
        batch: one of the batches; ``None`` if there are no batches.
    """

    def __init__(self, paths: Sequence[Sequence[Sequence[Any]]], batch: Any = None) -> None:
        super().__init__(within=Listed(paths[1:]) if paths[1:] else None)
        self._paths = frozenset(map(tuple, paths[0])) if paths else frozenset()
        found = [] if batch is None else _containers_in(structure_of_batch(batch, self._paths))
        self._containers = found

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        return {(*path, *one) for one in self._paths if isinstance(_at(value, one), list)}

    def containers(self) -> list[Structure]:
        return self._containers


class Promised(BatchShape):
    """Of values that are made later.

    Args:
        shape: returns what is known of them then.
    """

    def __init__(self, shape: Callable[[], BatchShape | None]) -> None:
        super().__init__()
        self._shape = shape

    @property
    def within(self) -> BatchShape | None:
        return Promised(self._shape_within)

    def _shape_within(self) -> BatchShape | None:
        shape = self._shape()
        return None if shape is None else shape.within

    def lists(self, value: Any, path: Path = ()) -> set[Path]:
        shape = self._shape()
        return set() if shape is None else shape.lists(value, path)

    def containers(self) -> list[Structure]:
        shape = self._shape()
        return [] if shape is None else shape.containers()


def container_paths(value: Any, shape: BatchShape | None) -> list[list[Path]]:
    """Return where the containers are in a batch, then in its examples, and so on, for `Listed`."""
    paths: list[list[Path]] = []
    while shape is not None and len(paths) < MAX_DEPTH:
        found = shape.found_in(value)
        paths.append(sorted(found, key=str))
        try:
            value = next(iter(rows_of(value, found)), None)
        except InvalidArgumentError:  # it is no batch
            break
        shape = shape.within
    while paths and not paths[-1]:
        del paths[-1]
    return paths


def rows_in(batch: Any, shape: BatchShape | None) -> list[Any]:
    """The examples of a batch; see `rows_of`."""
    return list(rows_of(batch, frozenset() if shape is None else shape.found_in(batch)))


_WRONG: Final = (AttributeError, IndexError, KeyError, TypeError)


def _at(value: Any, path: Path) -> Any:
    for key in path:
        branch = branch_of(value)
        if branch is None or key not in branch.keys:
            return None
        value = branch.parts[list(branch.keys).index(key)]
    return value


def _containers_in(structure: Structure) -> list[Structure]:
    if structure.is_flat:
        return []
    below = [found for one in structure.children for found in _containers_in(one)]
    return [structure, *below] if structure.kind == "list" else below


def _moved(known: Sequence[Structure], value: Any, path: Path, found: set[Path]) -> set[Path]:
    """Return where further lists of a batch are containers, judged by the values in them."""
    if not known:
        return set()
    if isinstance(value, list) and path not in found:
        return next(filter(None, (_lists_in(one, value, path, 0) for one in known)), set())
    branch = None if value is None else branch_of(value)
    if branch is None:
        return set()
    pairs = zip(branch.keys, branch.parts, strict=True)
    return {one for key, part in pairs for one in _moved(known, part, (*path, key), found)}


def _lists(structure: Structure, value: Any, path: Path, rows: int | None) -> set[Path]:
    """Return where lists of a batch are containers, judged by the structure of a similar batch."""
    if structure.is_leaf:
        return set()
    if isinstance(value, list):
        return _lists_in(structure, value, path, rows) if structure.kind == "list" else set()
    branch = None if value is None else branch_of(value)
    if branch is None:
        return set()
    known = dict(zip(structure.keys, structure.children, strict=True))
    found: set[Path] = set()
    for key, part in zip(branch.keys, branch.parts, strict=True):
        if key in known:
            found |= _lists(known[key], part, (*path, key), rows)
    return found


def _lists_in(structure: Structure, value: list[Any], path: Path, rows: int | None) -> set[Path]:
    """Where a list, and those in it, are containers, like one of as many parts; empty if it has
    rows.

    Args:
        structure: the other one.
        value: the list.
        path: where it is.
        rows: how many rows a batch has at most, if its parts may be of other kinds than those; 0 if
            they may not, ``None`` if nobody knows.
    """
    if len(value) != len(structure.children):
        return set()
    found = {path}
    are_parts = True
    for at, (child, part) in enumerate(zip(structure.children, value, strict=True)):
        are_parts &= _is_part(child, part)
        found |= _lists(child, part, (*path, at), rows)
    if not are_parts:
        # A function has made columns of dicts, say; or rows, which seldom have such lengths.
        counts = {
            count
            for child, part in zip(structure.children, value, strict=True)
            for count in _lengths_in(part, is_column=child.is_leaf)
        }
        count = next(iter(counts)) if len(counts) == 1 else None
        return found if count is not None and (rows is None or count <= rows) else set()
    lengths = {_rows_of(part) for part in value} - {None}  # of those that have a component
    return found if len(lengths) <= 1 else set()


def _lengths_in(part: Any, *, is_column: bool) -> set[int | None]:
    """Return the lengths of all columns in a part; ``None`` for what is no column."""
    leaves = [part] if is_column and isinstance(part, list) else list(leaves_of(part))
    is_text = [isinstance(leaf, str | bytes) for leaf in leaves]
    if any(is_text) or not leaves:
        return {None}
    return {_length_of(leaf) for leaf in leaves if leaf is not None}


def _is_part(structure: Structure, value: Any) -> bool:
    """Return whether a value can be a column, or the columns, of a part."""
    if value is None:
        return structure.kind == "none" or not structure.is_leaf
    if isinstance(value, list):
        return structure.is_leaf or structure.kind == "list"
    if structure.is_leaf:
        has_rows = hasattr(value, "__len__") and getattr(value, "ndim", 1) != 0
        return has_rows and not isinstance(value, str | bytes) and branch_of(value) is None
    return branch_of(value) is not None


def _length_of(leaf: Any) -> int | None:
    try:
        return len(leaf)
    except _WRONG:
        return None


def _rows_of(part: Any) -> int | None:
    try:
        return examples_in(part)
    except (*_WRONG, StopIteration):
        return None
