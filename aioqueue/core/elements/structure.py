"""Structures: the containers of a tree, without its leaves.

A `Structure` is found once, in the first tree (`structure_of`). From then on it takes others apart
leaf by leaf, many at once, and puts leaves together again. A tree with another structure is refused
by the path where it differs. Mappings, named tuples and dataclasses fit by the names of their
parts, in any order, and a plain tuple fits a named one. ``None`` stands for itself where all trees
have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple

from aioqueue.core.elements.trees import (
    MAX_DEPTH,
    Kind,
    Path,
    branch_of,
    dict_of,
    fields_of_tuple,
    path_text,
    record_of,
)
from aioqueue.core.elements.values import short_repr
from aioqueue.errors import InvalidArgumentError, counted, with_article


class Wording(NamedTuple):
    """How messages speak of trees."""

    what: str
    """What a tree is: an element, a batch, an example."""
    fields: str = "expected a dict with the keys {}"
    other: str = "expected {}"
    nothing: str = "expected None"
    takes_lists: bool = False
    """Whether a list fits a tuple, and a tuple a list."""


class Structure:
    """A container and the structures of its parts.

    Args:
        path: where it is in the whole tree.
        keys: how each part is found.
        children: the structure of each part.
        of: the type of a named tuple or dataclass; what defines a registered type.
    """

    kind: ClassVar[Kind]
    is_leaf: ClassVar[bool] = False

    __slots__ = ("_gatherers", "children", "is_flat", "keys", "of", "path")

    def __init__(
        self,
        path: Path = (),
        keys: Sequence[Any] = (),
        children: Sequence[Structure] = (),
        of: Any = None,
    ) -> None:
        self.path: Path = path
        self.keys: list[Any] = list(keys)
        self.children: list[Structure] = list(children)
        self.of: Any = of
        self.is_flat: bool = all(child.is_leaf for child in self.children)
        """Whether it is a leaf, or all of its parts are."""
        # Of each part that is a container, bound once: this runs for every element of a queue.
        self._gatherers = [None if one.is_leaf else one._gather for one in self.children]

    def __repr__(self) -> str:
        return f"<a {self.kind}: {self.plain(iter(self.labels()))}>"

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same containers and keys, whatever their types."""
        if not isinstance(other, Structure) or self.kind != other.kind:
            return False
        return self.keys == other.keys and self.children == other.children

    def __hash__(self) -> int:
        return hash((self.kind, *self.keys))

    def paths(self) -> Iterator[Path]:
        for child in self.children:
            yield from child.paths()

    def labels(self) -> list[str]:
        """Return how messages call each leaf: by its path, and ``"0"`` if it is the whole tree."""
        return [path_text(path) if path else "0" for path in self.paths()]

    def is_like(self, other: Structure) -> bool:
        """Return whether trees of the other structure fit this one."""
        if self.kind != other.kind or {*self.keys} != {*other.keys}:
            return False
        theirs = dict(zip(other.keys, other.children, strict=True))
        pairs = zip(self.keys, self.children, strict=True)
        return all(child.is_like(theirs[key]) for key, child in pairs)

    # Taking trees apart.

    def leaves(self, tree: Any, wording: Wording) -> list[Any]:
        """Return the leaves of a tree.

        Raises:
            InvalidArgumentError: it has another structure.
        """
        found: list[Any] = []
        self._gather(tree, wording, found)
        return found

    def columns(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        """Return the leaves of at least one tree: for each place, those of all trees.

        Raises:
            InvalidArgumentError: a tree has another structure.
        """
        found: list[Sequence[Any]] = []
        for child, column in zip(self.children, self._split(trees, wording), strict=True):
            if child.is_leaf:
                found.append(column)
            else:
                found += child.columns(column, wording)
        return found

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        """Return the parts of a tree, in the order of this structure.

        Raises:
            InvalidArgumentError: it is another container, or has other parts.
        """
        raise NotImplementedError

    def _gather(self, tree: Any, wording: Wording, found: list[Any]) -> None:
        parts = self.parts(tree, wording)
        if self.is_flat:
            found += parts
            return
        for gather, part in zip(self._gatherers, parts, strict=True):
            if gather is None:
                found.append(part)
            else:
                gather(part, wording, found)

    def _split(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        """Return the parts of several trees: for each key, those of all."""
        return list(zip(*(self.parts(tree, wording) for tree in trees), strict=True))

    def _refused(self, got: str, wanted: str, wording: Wording) -> InvalidArgumentError:
        place = path_text(self.path)
        where = f"{wording.what} at {place}" if place else wording.what
        return InvalidArgumentError(f"{where}: got {got}; {wanted}")

    # Putting leaves together.

    def made(self, leaves: Iterator[Any]) -> Any:
        return self.make(
            [next(leaves) if child.is_leaf else child.made(leaves) for child in self.children]
        )

    def make(self, parts: Sequence[Any]) -> Any:
        """Return a container of these parts."""
        raise NotImplementedError

    # In a file.

    def plain(self, leaves: Iterator[Any]) -> Any:
        """Return the structure in lists, with these texts for its leaves.

        A container is its kind and a list of its parts. Types are left out: `of_plain` and then
        `like` make a structure of it again.
        """
        parts = [next(leaves) if one.is_leaf else one.plain(leaves) for one in self.children]
        if self.kind in ("tuple", "list"):
            return [self.kind, parts]
        return [self.kind, [list(pair) for pair in zip(self.keys, parts, strict=True)]]

    def like(self, tree: Any, wording: Wording) -> Structure:
        """Return the structure with the types of a tree.

        Raises:
            InvalidArgumentError: the tree has another structure.
        """
        children = [
            child if child.is_leaf else child.like(part, wording)
            for child, part in zip(self.children, self.parts(tree, wording), strict=True)
        ]
        return type(self)(self.path, self.keys, children, self._type_of(tree))

    def _type_of(self, tree: Any) -> Any:
        return None


class _Leaf(Structure):
    """The place of a leaf."""

    kind: ClassVar[Kind] = "leaf"
    is_leaf: ClassVar[bool] = True

    __slots__ = ()

    def paths(self) -> Iterator[Path]:
        yield self.path

    def leaves(self, tree: Any, wording: Wording) -> list[Any]:
        return [tree]

    def columns(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        return [tuple(trees)]

    def made(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)

    def plain(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)

    def like(self, tree: Any, wording: Wording) -> Structure:
        return self


LEAF: Final[Structure] = _Leaf()
"""The structure of a tree that is a leaf."""


class _Nothing(Structure):
    """``None``, in all trees."""

    kind: ClassVar[Kind] = "none"

    __slots__ = ()

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        if tree is not None:
            raise self._refused(short_repr(tree), wording.nothing, wording)
        return ()

    def make(self, parts: Sequence[Any]) -> Any:
        return None

    def _split(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        for tree in trees:
            self.parts(tree, wording)
        return []

    def plain(self, leaves: Iterator[Any]) -> Any:
        return None


def keys_text(tree: Mapping[Any, Any]) -> str:
    """Return the keys of a mapping as messages show them: sorted, if all of them are strings."""
    return str(sorted(tree) if all(isinstance(key, str) for key in tree) else list(tree))


def _values_at(keys: Sequence[Any], tree: Any) -> list[Any]:
    return [tree[key] for key in keys]


class _Mapping(Structure):
    """A mapping; a dict is made of its parts."""

    kind: ClassVar[Kind] = "mapping"

    __slots__ = ("_count", "_of_all", "_wanted")

    def __init__(
        self, path: Path, keys: Sequence[Any], children: Sequence[Structure], of: Any = None
    ) -> None:
        super().__init__(path, keys, children, of)
        self._wanted = set(self.keys)
        self._count = len(self.keys)
        several = self._count > 1  # with one key, it would not return a tuple
        self._of_all: Callable[[Any], Any] = (
            itemgetter(*self.keys) if several else partial(_values_at, self.keys)
        )

    def _gather(self, tree: Any, wording: Wording, found: list[Any]) -> None:
        # What the general method does, with fewer calls: this runs for every element of a queue.
        if type(tree) is not dict or len(tree) != self._count:
            return super()._gather(tree, wording, found)
        try:
            parts = self._of_all(tree)
        except KeyError:
            return super()._gather(tree, wording, found)
        if self.is_flat:
            found += parts
            return None
        for gather, part in zip(self._gatherers, parts):  # noqa: B905  # they are as many
            if gather is None:
                found.append(part)
            else:
                gather(part, wording, found)
        return None

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        if type(tree) is dict and len(tree) == self._count:
            try:
                return self._of_all(tree)  # type: ignore[no-any-return]
            except KeyError:
                pass
        if not isinstance(tree, Mapping) or set(tree) != self._wanted:
            got = keys_text(tree) if isinstance(tree, Mapping) else short_repr(tree)
            raise self._refused(got, wording.fields.format(sorted(self._wanted)), wording)
        return [tree[key] for key in self.keys]

    def make(self, parts: Sequence[Any]) -> Any:
        return dict_of(self.keys, parts)

    def _split(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        count = self._count
        if not [tree for tree in trees if type(tree) is not dict or len(tree) != count]:
            try:
                return [[tree[key] for tree in trees] for key in self.keys]
            except KeyError:
                pass
        return super()._split(trees, wording) if self.keys else []


class _Sequence(Structure):
    """A tuple or list of a fixed number of parts."""

    _type: ClassVar[type[Any]]

    __slots__ = ()

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        kinds = (tuple, list) if wording.takes_lists else self._type
        if not isinstance(tree, kinds) or len(tree) != len(self.children):
            got = with_article(type(tree).__name__)
            if isinstance(tree, tuple | list):
                got += f" of {len(tree)}"
            noun = "part" if self.path else "component"
            wanted = f"a {self._type.__name__} of {counted(len(self.children), noun)}"
            raise self._refused(got, wording.other.format(wanted), wording)
        return tree

    def make(self, parts: Sequence[Any]) -> Any:
        return self._type(parts)

    def _split(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        if {*map(type, trees)} == {self._type} and len(trees[0]) == len(self.children):
            with suppress(ValueError):  # of different lengths
                return list(zip(*trees, strict=True))
        return super()._split(trees, wording) if self.children else []


class _List(_Sequence):
    kind: ClassVar[Kind] = "list"
    _type = list

    __slots__ = ()


class _Tuple(_Sequence):
    """A tuple. The names of named tuples among them must be the same, in any order."""

    kind: ClassVar[Kind] = "tuple"
    _type = tuple

    __slots__ = ("_names",)

    def __init__(
        self, path: Path, keys: Sequence[Any], children: Sequence[Structure], of: Any = None
    ) -> None:
        super().__init__(path, keys, children, of)
        self._names: list[str] | None = None  # those of the first named tuple that comes

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        names = fields_of_tuple(tree)
        if names is None:
            return super().parts(tree, wording)
        if self._names is None and len(names) == len(self.children):
            self._names = names
        known = self._names
        if known is None or names == known:
            return super().parts(tree, wording)
        if set(names) != set(known):
            raise self._refused(
                f"{with_article(type(tree).__name__)} with the fields {names}",
                f"the first one had the fields {known}, and all must have them",
                wording,
            )
        return [getattr(tree, name) for name in known]


class _NamedTuple(_Tuple):
    kind: ClassVar[Kind] = "named tuple"

    __slots__ = ("_is_in_place",)

    def __init__(
        self, path: Path, keys: Sequence[Any], children: Sequence[Structure], of: Any = None
    ) -> None:
        super().__init__(path, keys, children, of)
        self._names = self.keys
        # The position of an earlier run may have had the fields in another order.
        self._is_in_place = list(getattr(of, "_fields", self.keys)) == self.keys

    def make(self, parts: Sequence[Any]) -> Any:
        if not hasattr(self.of, "_make"):
            return tuple(parts)
        return self.of._make(parts) if self._is_in_place else self.of(**dict_of(self.keys, parts))

    def like(self, tree: Any, wording: Wording) -> Structure:
        names = fields_of_tuple(tree)
        if names is not None and self.keys == list(map(str, range(len(names)))):
            # An early version has written the number of the fields, but not their names.
            return _NamedTuple(self.path, names, self.children).like(tree, wording)
        return super().like(tree, wording)

    def _split(self, trees: Sequence[Any], wording: Wording) -> list[Sequence[Any]]:
        if self._is_in_place and {*map(type, trees)} == {self.of}:
            return list(zip(*trees, strict=True))
        return super()._split(trees, wording)

    def _type_of(self, tree: Any) -> Any:
        return type(tree)


class _Dataclass(Structure):
    kind: ClassVar[Kind] = "dataclass"

    __slots__ = ()

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        if type(tree) is not self.of:
            branch = branch_of(tree)
            if branch is None or branch.kind != "dataclass" or {*branch.keys} != {*self.keys}:
                name = getattr(self.of, "__name__", "dataclass")
                wanted = wording.other.format(f"{with_article(name)} with the fields {self.keys}")
                raise self._refused(with_article(type(tree).__name__), wanted, wording)
        return [getattr(tree, name) for name in self.keys]

    def make(self, parts: Sequence[Any]) -> Any:
        return record_of(self.of, self.keys, parts)

    def _type_of(self, tree: Any) -> Any:
        return type(tree)


class _Registered(Structure):
    """A value of a type that is registered with JAX, PyTorch or optree."""

    kind: ClassVar[Kind] = "registered"

    __slots__ = ()

    def parts(self, tree: Any, wording: Wording) -> Sequence[Any]:
        branch = branch_of(tree)
        is_alike = branch is not None and branch.kind == "registered"
        if branch is None or not is_alike or len(branch.parts) != len(self.children):
            wanted = f"a registered type with {counted(len(self.children), 'part')}"
            got = with_article(type(tree).__name__)
            raise self._refused(got, wording.other.format(wanted), wording)
        if self.of is not None and branch.definition != self.of.definition:
            got = f"{with_article(type(tree).__name__)} defined by {branch.definition}"
            raise self._refused(got, wording.other.format(str(self.of.definition)), wording)
        return branch.parts

    def make(self, parts: Sequence[Any]) -> Any:
        return self.of.make(list(parts))

    def _type_of(self, tree: Any) -> Any:
        return _Definition.of(tree)


class _Definition(NamedTuple):
    """What a registered type holds besides its parts; it keeps none of them alive."""

    definition: Any
    make: Callable[[Sequence[Any]], Any]

    @classmethod
    def of(cls, tree: Any) -> _Definition:
        branch = branch_of(tree)
        assert branch is not None
        return cls(branch.definition, branch.make)


_KINDS: Final[Mapping[str, type[Structure]]] = {
    one.kind: one for one in (_Mapping, _Tuple, _List, _NamedTuple, _Dataclass, _Registered)
}


def structure_of(
    tree: Any, wording: Wording, is_leaf: Callable[[Any, Path], bool], path: Path = ()
) -> Structure:
    """Return the structure of a tree.

    Args:
        tree: any value.
        wording: for messages.
        is_leaf: returns, for a value and its path, whether to keep it whole though it has parts.
        path: where the tree is.

    Raises:
        InvalidArgumentError: a mapping has keys that are not strings, or it is too deep.
    """
    if is_leaf(tree, path):
        return _Leaf(path)
    if len(path) > MAX_DEPTH:
        raise InvalidArgumentError(
            f"{wording.what}: got containers in containers, more than {MAX_DEPTH} deep; expected"
            " fewer"
        )
    if tree is None:
        return _Nothing(path)
    branch = branch_of(tree)
    if branch is None:
        return _Leaf(path)
    if branch.kind == "mapping" and not all(isinstance(key, str) for key in branch.keys):
        refused = Structure(path)._refused
        raise refused(f"the keys {keys_text(tree)}", "expected strings as names", wording)
    children = [
        structure_of(part, wording, is_leaf, (*path, key))
        for key, part in zip(branch.keys, branch.parts, strict=True)
    ]
    of: Any = branch.definition
    if branch.kind == "registered":
        of = _Definition(branch.definition, branch.make)
    return _KINDS[branch.kind](path, branch.keys, children, of)


def flat_structure(kind: Kind, keys: Sequence[Any]) -> Structure:
    """Return the structure of a container whose parts are leaves, or `LEAF`; without its type."""
    if kind == "leaf":
        return LEAF
    return _KINDS[kind]((), keys, [_Leaf((key,)) for key in keys])


def of_plain(given: Any, leaves: list[Any], path: Path = ()) -> Structure:
    """Return the structure that `Structure.plain` has converted, without types.

    Args:
        given: what `plain` has returned.
        leaves: the values that stand for leaves are added to this list.
        path: where it is.
    """
    if given is None:
        return _Nothing(path)
    if isinstance(given, str):
        leaves.append(given)
        return _Leaf(path)
    kind, parts = given
    pairs = enumerate(parts) if kind in ("tuple", "list") else parts
    keys, children = [], []
    for key, part in pairs:
        keys.append(key)
        children.append(of_plain(part, leaves, (*path, key)))
    return _KINDS[kind](path, keys, children)
