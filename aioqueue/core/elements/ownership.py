"""Private copies: which values share memory with others, and copies of those that do.

A function may return the same array each time, or views of a buffer that it reuses; so may an
iterable or a dataset. An example waits until its batch is made, and by then that memory could hold
another example. (This concerns tasks and threads: a process sends each example at once.) So the
pipeline copies an example before it waits, unless nothing else can have it. An array is safe if it
owns its memory and the caller holds its only reference, by CPython's reference counts. These counts
may be too high, for instance if a generator keeps in a variable what it has yielded. Then there is
one copy too many, but never one too few. Read-only memory is never copied.

The check covers arrays, tensors and buffers, also inside tuples, lists, deques and dicts (of any
class), dataclasses, attrs classes, namespaces and the wrappers of `collections`. Other objects stay
references: they may be open files, models or connections.
"""

from __future__ import annotations

import copy
import sys
from array import array as _array
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable
from functools import cache
from sys import getrefcount
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import numpy as np

from aioqueue.core.elements.trees import Registered, registered

FIXED: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), range, frozenset}
    | {kind for kind in np.sctypeDict.values() if not issubclass(kind, np.void | np.object_)}
)
"""Immutable types."""

_CONTAINERS: Final = (tuple, list, dict, deque)
_NESTED: Final = frozenset({tuple, list, dict})
_IN_ATTRIBUTES: Final = (SimpleNamespace, UserDict, UserList, ChainMap)
"""Classes whose attributes have all that they hold. Other mappings may be open files."""

_VIEWS: Final[dict[type, tuple[type[dict[Any, Any]], str]]] = {
    type(getattr(kind(), name)()): (kind, name)
    for kind in (dict, OrderedDict)
    for name in ("keys", "values", "items")
}
"""The views of dicts, which change with their dict."""

_BUFFERS: Final = (bytearray, np.void, set, _array)

_ndarray = np.ndarray


def _references(value: Any) -> int:
    return getrefcount(value)


def _references_of_unshared() -> int:
    """Return the reference count of a value that only one variable of the caller holds."""
    value = np.empty(0)
    return _references(value)


def _references_of_base() -> int:
    """Return the same for the base of a view, if the view is its only user."""
    view = np.empty(2)[1:]
    base = view.base
    return getrefcount(base)


_UNSHARED: Final = _references_of_unshared()
_UNSHARED_BASE: Final = _references_of_base()


class _Owned:
    """The values that the pipeline owns for certain: the function's item and its parts.

    Args:
        item: the item; ``None`` without an item.
    """

    __slots__ = ("_ids", "_item", "inside", "is_endless")

    def __init__(self, item: Any) -> None:
        self._item = item
        self._ids: set[int] | None = None
        self.inside: set[int] = set()
        """The containers on the current path."""
        self.is_endless = False
        """Whether a container contains itself: then nothing is copied."""

    def has(self, value: Any) -> bool:
        """Return whether a value is a part of the item, or a view of a part."""
        if self._item is None:
            return False
        if self._ids is None:
            self._ids = _ids_in(self._item)
        base = value.base if isinstance(value, _ndarray) else None
        return id(value) in self._ids or (base is not None and id(base) in self._ids)


def copy_if_shared(value: Any, item: Any = None) -> Any:
    """Return the value, or a copy of it if others may write to its memory.

    The caller must hold the value in one variable and nowhere else.

    Args:
        value: the value that is to wait.
        item: the item that the function got to make it. It is not copied if it comes back.
    """
    kind = type(value)
    if kind in FIXED or value is item:
        return value
    # How many references a call itself holds depends on its form and on the version of Python. So
    # the numbers to compare with are measured when this module is imported, in calls of this form.
    is_shared = getrefcount(value) > _UNSHARED
    if kind is _ndarray and value.base is None and not (is_shared or value.dtype.hasobject):
        return value
    if not is_shared and (kind is tuple or kind is dict):  # the common case
        if _are_unshared(value if kind is tuple else value.values()):
            return value
        if kind is tuple and type(item) in FIXED:
            made = _copy_shared_arrays(value)
            if made is not None:
                return made
    return _copy_if_finite(value, _Owned(item), is_shared)


def copy_shared_parts(values: list[Any]) -> list[Any]:
    """Return a list of the same values, each private: no two share memory that can be written to.

    Args:
        values: the list. The caller must hold it in one variable and nowhere else; if others hold
            it, too, all of its values are shared.
    """
    is_shared = getrefcount(values) > _UNSHARED
    return [_copy_shared_at(values, index, is_shared) for index in range(len(values))]


def _copy_shared_at(values: list[Any], index: int, is_shared: bool) -> Any:
    owned = _Owned(None)  # one for each value: an endless one must not leave the others shared
    try:
        made = _part(values, index, owned, is_shared)
    except RecursionError:
        return values[index]
    return values[index] if owned.is_endless else made


def _copy_if_finite(value: Any, owned: _Owned, is_shared: bool) -> Any:
    """Return a value with private parts; itself, if containers are in each other without an end, or
    deeper than Python can follow, as in a linked list."""
    try:
        made = _copy_shared(value, owned, is_shared)
    except RecursionError:
        return value
    return value if owned.is_endless else made


def _are_unshared(parts: Iterable[Any]) -> bool:
    """Return whether the parts of a container that nobody else holds need no copies.

    (A container that contains itself has two that hold it.)
    """
    for part in parts:
        kind = type(part)
        if kind is _ndarray:
            if part.base is not None or getrefcount(part) > _UNSHARED_PART or part.dtype.hasobject:
                return False
        elif kind not in FIXED and not (kind is tuple and FIXED.issuperset(map(type, part))):
            # Not `isinstance`: only of these exact types is it known what else they refer to.
            is_unshared = kind in _NESTED and getrefcount(part) <= _UNSHARED_PART
            if not is_unshared or not _are_unshared(part.values() if kind is dict else part):
                return False
    return True


def _copy_shared_arrays(parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a tuple of numbers and plain arrays, with copies of the arrays that others may write
    to; ``None`` if it has parts of other kinds.

    It does what `_copy_shared` does for any value, with two fifths of the instructions. The caller
    alone holds the tuple, and the item has no array that the function could give back.
    """
    made: list[Any] = []
    has_changed = False
    for part in parts:
        if type(part) not in FIXED:
            if type(part) is not _ndarray or part.dtype.hasobject:
                return None
            if (getrefcount(part) > _UNSHARED_PART or not _is_sole_view(part)) and not _is_fixed(
                part
            ):
                made.append(part.copy(order="K"))
                has_changed = True
                continue
        made.append(part)
    return tuple(made) if has_changed else parts


def copy_shared(value: Any) -> Any:
    """Copy a value that others hold: its arrays, tensors and containers."""
    kind = type(value)
    if kind in FIXED:
        return value
    if kind is dict and FIXED.issuperset(map(type, value.values())):
        return value.copy()  # the common case: a row
    return _copy_if_finite(value, _Owned(None), True)


def _copy_shared(value: Any, owned: _Owned, is_shared: bool) -> Any:
    """Return a value, or a copy of it.

    Args:
        value: the value that may need a copy.
        owned: what needs no copy.
        is_shared: whether others hold the value, or its container.
    """
    kind = type(value)
    if kind in FIXED:
        return value
    if isinstance(value, _ndarray):
        if (
            (is_shared or not _is_sole_view(value))
            and not _is_fixed(value)
            and not owned.has(value)
        ):
            value = value.copy(order="K") if kind is _ndarray else value.copy()
        return _copied_objects(value, owned) if value.dtype.hasobject else value
    if isinstance(value, _CONTAINERS):
        return _unless_inside(_container, value, owned, is_shared and not owned.has(value))
    if isinstance(value, _BUFFERS):
        if not _may_change(value, is_shared) or owned.has(value):
            return value
        if isinstance(value, np.void):
            has_objects = value.dtype.hasobject
            return _copied_objects(np.array(value), owned)[()] if has_objects else value.copy()
        return copy.copy(value)
    if kind is memoryview:
        return value if _is_fixed_view(value) or owned.has(value.obj) else _copied_view(value)
    if _names_of_fields(kind) is not None:
        return _unless_inside(_record, value, owned, is_shared and not owned.has(value))
    if kind is MappingProxyType:
        parts = _copy_shared(dict(value), owned, True)
        return MappingProxyType(parts)
    if kind in _VIEWS:
        plain, name = _VIEWS[kind]
        return getattr(_copy_shared(plain(value.mapping), owned, True), name)()
    clone = getattr(value, "clone", None)  # PyTorch's tensors have it
    if clone is not None and hasattr(value, "__dlpack__"):
        is_unshared = not is_shared and _has_sole_storage(value)
        return value if is_unshared or owned.has(value) else clone()
    known = None if isinstance(value, type) else registered(value)
    return value if known is None else _unless_inside(_registered, value, owned, known)


def _unless_inside(make: Callable[..., Any], value: Any, owned: _Owned, argument: Any) -> Any:
    """Return ``make(value, owned, argument)``; the value itself, if it contains itself."""
    if id(value) in owned.inside:
        # The copy would have to refer to itself, which cannot be made before it is complete. The
        # caller then drops what was copied so far, and keeps the whole value shared.
        owned.is_endless = True
        return value
    owned.inside.add(id(value))
    made = make(value, owned, argument)
    owned.inside.discard(id(value))
    return made


def _may_change(value: Any, is_shared: bool) -> bool:
    return is_shared or isinstance(value, np.void)  # a np.void may be a view of an array


def _container(value: Any, owned: _Owned, is_shared: bool) -> Any:
    """Return a tuple, list or dict with private parts; itself, if no part needed a copy."""
    if isinstance(value, dict):
        parts = {key: _part(value, key, owned, is_shared) for key in value}
        if not is_shared and all(parts[key] is one for key, one in value.items()):
            return value
        return parts if type(value) is dict else _like(value, parts)
    listed = [_part(value, index, owned, is_shared) for index in range(len(value))]
    has_changed = any(map(_differs, listed, value))
    if isinstance(value, tuple):
        if not has_changed:
            return value
        if type(value) is tuple:
            return tuple(listed)
        make: Callable[[Any], Any] | None = getattr(type(value), "_make", None)
        return _tuple_like(value, listed) if make is None else make(listed)
    if not (has_changed or is_shared):
        return value
    return listed if type(value) is list else _like(value, dict(enumerate(listed)))


def _like(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a copy of a container of another class with these parts.

    Its own `copy` would return a plain dict or list, unless the class has defined it. If no copy of
    the class can be made, it is a plain one.
    """
    base: Any = next(base for base in (dict, list, deque) if isinstance(value, base))
    for copied_by in (copy.copy, _bare_copy, base.copy):
        try:
            copied = copied_by(value)
            for key, part in parts.items():  # a deque does not support slices
                base.__setitem__(copied, key, part)  # the class may forbid changes
        except Exception:
            continue
        if copied is not value and (type(copied) is type(value) or copied_by is base.copy):
            return copied
    return value


def _bare_copy(value: Any) -> Any:
    """Return a copy of a dict or list of another class that runs none of its methods."""
    base: Any = dict if isinstance(value, dict) else list
    copied = base.__new__(type(value))
    base.__init__(copied, value)
    getattr(copied, "__dict__", {}).update(getattr(value, "__dict__", {}))
    return copied


def _tuple_like(value: Any, parts: list[Any]) -> Any:
    """Return a tuple of another class with these parts; itself, if it cannot be made."""
    kind = type(value)
    try:
        made = tuple.__new__(kind, parts)
        getattr(made, "__dict__", {}).update(getattr(value, "__dict__", {}))
    except TypeError:
        pass
    else:
        return made
    try:
        return kind(parts)  # a type of results, such as those of PyTorch
    except Exception:
        return value


def _registered(value: Any, owned: _Owned, known: Registered) -> Any:
    """Return a value of a type that is registered as a pytree, with private parts.

    It is unknown what else refers to its parts, so all that can change are copied.
    """
    parts = [_copy_shared(part, owned, True) for part in known.parts]
    return known.make(parts) if any(map(_differs, parts, known.parts)) else value


def _names_of_fields(kind: type[Any]) -> Any:
    """Return the fields' names of a dataclass or the like; ``None`` for other classes."""
    found = getattr(kind, "__dataclass_fields__", None)
    if found is None:
        found = getattr(kind, "__attrs_attrs__", None)
    return () if found is None and issubclass(kind, _IN_ATTRIBUTES) else found


def _fields_of(value: Any) -> dict[str, Any]:
    fields = dict(getattr(value, "__dict__", ()))
    for field in _names_of_fields(type(value)):
        name = field if isinstance(field, str) else field.name
        try:
            fields[name] = object.__getattribute__(value, name)
        except AttributeError:  # a pseudo-field, or deleted
            continue
    return fields


def _record(value: Any, owned: _Owned, is_shared: bool) -> Any:
    """Return a record with private fields; itself, if no field needed a copy."""
    fields = _fields_of(value)
    # Both the record and `fields` hold a reference to each field.
    made = {name: _field(fields, name, owned, is_shared) for name in fields}
    changed = {name: one for name, one in made.items() if one is not fields[name]}
    if not (changed or is_shared):
        return value
    try:
        copied = copy.copy(value)
        for name, one in changed.items():
            object.__setattr__(copied, name, one)  # the record may be frozen
    except Exception:  # the class cannot be copied: then it is like any other object
        return value
    return copied


def _field(fields: dict[str, Any], name: str, owned: _Owned, is_shared: bool) -> Any:
    value = fields[name]
    if type(value) in FIXED:
        return value
    is_shared = is_shared or getrefcount(value) > _UNSHARED_PART + 1
    return _copy_shared(value, owned, is_shared)


def _is_fixed_view(view: memoryview) -> bool:
    """Return whether the memory that a view shows is read-only."""
    return view.readonly and isinstance(view.obj, bytes)


def _copied_view(view: Any) -> Any:
    """Return a view of a copy; the view itself, if NumPy does not know its format."""
    try:
        return np.array(view).data
    except (ValueError, TypeError, NotImplementedError):
        return view


def _differs(one: Any, other: Any) -> bool:
    return one is not other


def _part(container: Any, key: Any, owned: _Owned, is_shared: bool) -> Any:
    part = container[key]
    if type(part) in FIXED:
        return part
    is_shared = is_shared or getrefcount(part) > _UNSHARED_PART  # the container holds one reference
    return _copy_shared(part, owned, is_shared)


def _references_of_part() -> int:
    """Return the reference count in `_part` of a value that only its container holds."""
    container = [np.empty(0)]
    part = container[0]
    return getrefcount(part)


_UNSHARED_PART: Final = _references_of_part()


def _is_sole_view(array: Any) -> bool:
    """Return whether an array is the only way to its memory, and nothing else refers to it.

    An array whose own rows overlap is not: each row would be a way to another one's memory.
    """
    base = array.base
    if base is None:
        return True
    is_unshared = isinstance(base, _ndarray) and base.base is None
    return is_unshared and getrefcount(base) <= _UNSHARED_BASE and not overlaps_itself(array)


def _is_fixed(array: Any) -> bool:
    """Return whether the memory of an array is read-only."""
    while isinstance(array, _ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes | str)


def _has_sole_storage(tensor: Any) -> bool:
    """Return whether a PyTorch tensor owns its memory, and no other tensor is a way to it.

    A tensor does not know its aliases: `detach`, ``data`` and views in inference mode have no
    ``_base``. Only the storage counts its users. Where it does not say how many, the answer is no.
    """
    try:
        storage = tensor.untyped_storage()
        is_owner = tensor._base is None and bool(storage.resizable())
        return is_owner and _users(storage) == _users_of_unshared()
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def _users(storage: Any) -> int:
    count: int = sys.modules["torch"]._C._storage_Use_Count(storage._cdata)
    return count


@cache
def _users_of_unshared() -> int:
    """Return how many users the storage of a tensor has that nobody shares."""
    tensor = sys.modules["torch"].empty(1)
    return _users(tensor.untyped_storage())


def overlaps_itself(array: Any) -> bool:
    """Return whether two elements of an array share memory.

    The check is exact. Nearly all arrays are decided by their strides: an axis whose step leaves
    room for all smaller axes cannot bring two elements together. For the others, such as diagonals
    of a buffer, the places of all elements are compared.
    """
    size = array.itemsize
    if array.flags.forc or array.size <= 1 or not size:
        return False
    axes = sorted(
        (abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1
    )
    if axes[0][0] < size:
        return True  # neighbours on this axis overlap
    extent, is_nested = size, True
    for step, n in axes:
        is_nested = is_nested and step >= extent
        extent += step * (n - 1)
    if is_nested:
        return False
    # More elements than fit into their memory overlap. So the places to compare fit, too.
    return array.size * size > extent or _overlap(_places(array), size)


def overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays share memory. The check is exact."""
    if not (one.nbytes and other.nbytes and np.may_share_memory(one, other)):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))
    except np.exceptions.TooHardError:
        # Equations that would take for ever. The places of all elements are a few at most.
        places = np.concatenate([_places(array) for array in (one, other)])
        sizes = np.repeat([one.itemsize, other.itemsize], [one.size, other.size])
        return _overlap(places, sizes)


_MOST_WORK: Final[Any] = 100_000


def _places(array: Any) -> Any:
    """Return the addresses of all elements."""
    places = np.array([array.__array_interface__["data"][0]], np.int64)
    for step, n in zip(array.strides, array.shape, strict=True):
        places = (places[:, None] + step * np.arange(n, dtype=np.int64)).ravel()
    return places


def _overlap(places: Any, sizes: Any) -> bool:
    """Return whether any two of these pieces of memory overlap."""
    order = np.argsort(places, kind="stable")
    starts = places[order]
    ends = starts + (sizes if isinstance(sizes, int) else sizes[order])
    return bool((starts[1:] < np.maximum.accumulate(ends)[:-1]).any())


def _copied_objects(array: Any, owned: _Owned) -> Any:
    """Copy an array of objects, or of records with objects, and those of its arrays and containers
    that others may hold."""
    if array.dtype.names is not None:
        copy = array.copy()
        for name in array.dtype.names:
            if copy.dtype[name].hasobject:
                copy[name] = _copied_objects(copy[name], owned)
        return copy
    if array.dtype.kind != "O" or FIXED.issuperset(map(type, array.flat)):
        return array
    return _unless_inside(_copied_elements, array, owned, True)


def _copied_elements(array: Any, owned: _Owned, is_shared: bool) -> Any:
    copy = np.empty(array.size, object)
    for index, one in enumerate(array.flat):
        copy[index] = _copy_shared(one, owned, is_shared)
    return copy.reshape(array.shape)


def _ids_in(value: Any) -> set[int]:
    """Return the ids of a value, its parts, and the bases of the views among them."""
    found: set[int] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        if id(one) in found:
            continue
        found.add(id(one))
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, tuple | list | deque):
            pending += one
        elif _names_of_fields(type(one)) is not None:
            pending += _fields_of(one).values()
        elif isinstance(one, _ndarray) and one.base is not None:
            found.add(id(one.base))
    return found
