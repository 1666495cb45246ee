"""What the entry of a stage in a position holds: its fields, and which values they may have.

Each class of stages names the fields of its own entry. The classes here write an entry, read it,
and check it: a position comes from a file, so nothing in it is sure to have the right type.

Which fields there are depends only on the pipeline, never on the data; empty fields are ``None``.
If the size of a value depends on the data, it is a list or a text. PyTorch's distributed checkpoint
(DCP) needs this: it saves each field by itself, and asks for the fields before the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aioqueue.base.arguments import is_int
from aioqueue.base.json_files import DocumentError
from aioqueue.pipeline.nodes.deferred import made, plain

if TYPE_CHECKING:
    from aioqueue.pipeline.nodes.rows import State

_MOST: Final = 2**63


class Field:
    """A field with one value.

    Args:
        is_valid: whether a value is one that such a field may have.
        expected: what a message says that it expects.
        is_of_node: whether the node itself writes and reads the field. Counts of items and layouts
            are collected by the builder of a run.
    """

    __slots__ = ("expected", "is_of_node", "is_valid")

    def __init__(
        self, is_valid: Callable[[Any], bool], expected: str, *, is_of_node: bool = True
    ) -> None:
        self.is_valid: Callable[[Any], bool] = is_valid
        self.expected: str = expected
        self.is_of_node: bool = is_of_node

    def blank(self) -> Any:
        """The value before the first batch."""
        return None

    def check(self, where: str, value: Any) -> None:
        """Check a value that a position has for this field.

        Raises:
            DocumentError: no state has this value.
        """
        if value is not None and not self.is_valid(value):
            raise DocumentError(f"{where}: got {str(value)[:40]!r}; expected {self.expected}")


class NestedField:
    """A field that has fields of its own.

    Args:
        fields: these fields.
        is_node: whether it is the state of a second node of the stage, behind the first one.
    """

    is_of_node = False

    def __init__(self, fields: Fields, *, is_node: bool = False) -> None:
        self.fields: Fields = fields
        self.is_node: bool = is_node

    def blank(self) -> dict[str, Any]:
        return {name: field.blank() for name, field in self.fields.items()}

    def check(self, where: str, value: Any) -> None:
        """Check the values that a position has for these fields.

        Raises:
            DocumentError: no state has these values.
            KeyError, AttributeError: it has other fields, or none.
        """
        for name, one in value.items():
            self.fields[name].check(f"{where}.{name}", one)


class WorkerCounts(NestedField):
    """The counts of the items that workers have prepared."""

    def check(self, where: str, value: Any) -> None:
        # What has not run yet has no counts at all; `upto` and `beyond` are checked when a run
        # takes the counts over.
        if value["upto"] is not None and not all(is_number(value[one]) for one in _TALLY):
            raise DocumentError(f"{where}: got {value!r}; expected numbers")


Fields: TypeAlias = Mapping[str, Field | NestedField]


def is_number(value: Any) -> bool:
    """Return whether a value is an int that a state may contain."""
    return is_int(value) and 0 <= value < _MOST


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    return is_number(value) or (isinstance(value, float) and 0 <= value < inf)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check for lists of such values."""
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def pairs_of(
    is_first: Callable[[Any], bool], is_second: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    """A check for lists of pairs of such values."""
    return list_of(
        lambda pair: (
            isinstance(pair, list) and len(pair) == 2 and is_first(pair[0]) and is_second(pair[1])
        )
    )


def _is_cut(value: Any) -> bool:
    """Whether it says which parts of items were delivered: each part with its own parts."""
    return pairs_of(is_number, lambda parts: parts is None or _is_cut(parts))(value)


NUMBER: Final = Field(is_number, "a number")
TEXT: Final = Field(is_text, "text")
NUMBERS: Final = Field(list_of(is_number), "a list of numbers")
_PLACE: Final = Field(lambda value: is_text(value) or is_number(value), "a number or text")
_PARTIAL: Final = Field(
    pairs_of(is_number, list_of(is_number)), "numbers, each with a list of them"
)
_ANYTHING: Final = Field(lambda _: True, "a place")  # only the source knows what it is
_CUT: Final = Field(_is_cut, "a list of items with their parts")

COMMON: Final[Fields] = {"epoch": NUMBER, "given": NUMBER}
"""The fields of every node."""

HELD: Final[Fields] = {"taken": TEXT, "from": TEXT, "held": TEXT}
"""The fields of a node that holds rows: the last row that it took from the node before, the row
behind which that node begins again, and the names of the held rows; see `replay_log`."""

LAYOUT: Final[Fields] = {
    "example": Field(is_text, "text", is_of_node=False),
    "components": Field(
        list_of(lambda one: is_text(one) or isinstance(one, list)), "text", is_of_node=False
    ),
}
"""The containers, dtypes and shapes that the first example has fixed."""

_TALLY: Final = ("prepared", "examples", "left_out", "skipped", "retried")
_COUNTS: Final[Fields] = dict.fromkeys(("upto", *_TALLY), NUMBER)
"""The counts of items. They include all items below ``upto`` and, without order, the ones in
``beyond``."""

WORKERS: Final[Fields] = {
    "next": _PLACE,
    "from": NUMBER,
    "missing": TEXT,
    "upto": NUMBER,
    "partial": _PARTIAL,
    "counts": WorkerCounts({"beyond": _ANYTHING, **_COUNTS}),
}
"""The fields of a stage with workers; see `worker_fields`."""

_UNORDERED: Final = ("missing", "upto", "partial")

READING: Final = NestedField(
    {**COMMON, "next": _PLACE, "from": NUMBER, "counts": WorkerCounts(_COUNTS)}
)
"""The state of the task that reads an async source."""

_START: Final[Fields] = {"start": NUMBER, "start_place": _ANYTHING}
"""Where reading can begin, if the source has no random access."""

_LEFT: Final[Fields] = {
    "missing": TEXT,
    "upto": NUMBER,
    "count": NUMBER,
    **_START,
    "cut": _CUT,
    "ended": Field(pairs_of(is_number, is_number), "a list of pairs of numbers"),
    "files": Field(list_of(list_of(is_number)), "a list of lists of numbers"),
    "file_count": NUMBER,
}
"""The items that a rank has left: the state of its ledger."""

READ: Final = NestedField({**COMMON, **_START, "left": NestedField(_LEFT)})
"""The state of the node that reads the source."""

RANK_FIELDS: Final[Fields] = {"total": NUMBER, "lost": TEXT}

PADDING: Final = NestedField(
    {
        **COMMON,
        **dict.fromkeys(("seen", "extra", "latest"), NUMBER),
        "again": Field(list_of(is_text), "a list of rows"),
        **HELD,
    },
    is_node=True,
)
"""The state of the rank padding behind a stage."""


def worker_fields(entry: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The empty fields of a stage with workers that its arguments give it.

    Args:
        entry: the empty fields of all such stages.
        arguments: what identifies the stage.
    """
    is_ordered = arguments.get("ordered", True)
    unused = _UNORDERED if is_ordered else ("next",)
    entry = {name: one for name, one in entry.items() if name not in unused}
    if is_ordered:
        entry["counts"] = {name: one for name, one in entry["counts"].items() if name != "beyond"}
    return entry


def blank_read(
    *, is_addressed: bool, is_async: bool, has_ledger: bool, by_file: bool = False
) -> dict[str, Any]:
    """The empty fields of a source.

    Args:
        is_addressed: whether reading can begin at any item.
        is_async: whether a task of its own reads the source.
        has_ledger: whether a rank records which items are left.
        by_file: whether ranks divide files.
    """
    read = READ.blank()
    if is_addressed:
        for name in _START:
            del read[name]
    if not has_ledger:
        del read["left"]
    elif not by_file:
        del read["left"]["files"], read["left"]["file_count"]
    return {"read": read, **({"reading": READING.blank()} if is_async else {})}


def blank_rest() -> dict[str, Any]:
    """The empty fields for what an earlier number of ranks has left."""
    return dict.fromkeys(("total", "epochs", *REST))


REST: Final = ("batches", "missing", "upto", *_START, "cut")
"""What an earlier number of ranks has left of each epoch."""


def write_fields(entry: dict[str, Any], state: State | None) -> State | None:
    """Write the state of a node into an entry. Returns the state of the node before."""
    upstream: State | None = None
    state = made(state)
    for key, value in () if state is None else state.items():
        if key == "upstream":
            upstream = value
        elif key in ("buffer", "log"):
            upstream = write_fields(entry, value) or upstream
        elif key == "start_place" and value is not None:  # it may contain tuples
            entry[key] = plain(value)
        else:
            entry[key] = value
    return upstream


def read_fields(entry: Mapping[str, Any], fields: Fields, upstream: State | None) -> State | None:
    """Read the state of a node from an entry; ``None`` if the entry is empty.

    Args:
        entry: the entry.
        fields: those that such an entry may have.
        upstream: the state of the node before.
    """
    own = own_fields(entry, fields)
    if not own or "held" not in fields:
        return {**own, "upstream": upstream} if own else None
    log = {key: own.pop(key) for key in HELD if key in own}
    given: State = {key: own.pop(key) for key in COMMON if key in own}
    return {**given, "buffer": own, "log": {**log, "upstream": upstream}}


def own_fields(entry: Mapping[str, Any], fields: Fields) -> State:
    """The fields in an entry that the node itself writes, and that are not empty."""
    return {
        name: entry[name]
        for name, field in fields.items()
        if field.is_of_node and name in entry and entry[name] is not None
    }
