"""States as documents: the state of each stage beside its arguments, in plain JSON types.

The state of a node contains the state of the node before, so nested states run from the last stage
to the source. People want to read them stage by stage, from the source on. So a state is written
into a *document*, which has an entry for the source and for each stage: what identifies it, and
fields for its state.

Which fields exist depends only on the pipeline, never on the data; empty fields are ``None``. If
the size of a value depends on the data, it is a list or a text. PyTorch's distributed checkpoint
(DCP) needs this: it saves each field by itself, and asks for the fields before the first batch.

`write_node` and `node_in` convert between both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, Final

from aioqueue.base.arguments import is_int
from aioqueue.base.json_files import DocumentError
from aioqueue.pipeline.nodes.progress import made, plain
from aioqueue.pipeline.nodes.rows import State

VERSION: Final = 3
"""The version of the states of pipelines. A state of another version is refused by name."""

_HELD: Final = ("taken", "from", "held")
"""The fields of a stage that holds rows: the last row that it took from the stage before, the row
behind which that stage begins again, and the names of the held rows; see `replay_log`."""

_ORDERED: Final = ("next", "from")
_UNORDERED: Final = ("missing", "upto", "partial", "from")
_LAYOUT: Final = ("example", "components")
_COUNTS: Final = ("upto", "prepared", "examples", "left_out", "skipped", "retried")
"""The fields for the counts of items. They include all items below ``upto`` and, without order, the
ones in ``beyond``."""
_DRAWING: Final = ("drawn", "buffered", "ready", *_HELD)
_WORKERS: Final = (*_ORDERED, *_UNORDERED[:-1], "counts")

_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "prepare": _WORKERS,
    "flat": _WORKERS,
    "map_batches": _WORKERS,
    "prefetch": _WORKERS,
    "to_device": _WORKERS,
    "carry": _WORKERS,
    "filter": (),
    "take": ("left",),
    "skip": ("left",),
    "enumerate": (),
    "shuffle": _DRAWING,
    "draw": _DRAWING,
    "batch": ("made", "epochs", *_HELD, *_LAYOUT),
    "unbatch": ("left", *_HELD),
    "bucket": ("made", "counts", *_HELD, *_LAYOUT),
    "pack": ("made", "pieces", "places", "again", *_HELD, *_LAYOUT),
    "window": ("made", "gap", *_HELD, *_LAYOUT),
    "mix": ("drawn", "chosen", "running", "spent"),
    "concat": ("chosen",),
    "zip": ("ahead",),
}
"""The fields of each kind of stage, in addition to `_COMMON`."""

WORKING: Final = frozenset({"prepare", "flat", "map_batches", "prefetch", "to_device", "carry"})
"""Kinds of stages with workers."""
MAKING: Final = frozenset({"batch", "bucket", "pack", "window"})
"""Kinds of stages that make rows of several others."""
_COMBINING: Final = frozenset({"mix", "concat", "zip"})
"""Kinds of stages that bring in other pipelines."""

_COMMON: Final = ("epoch", "given")
_PADDING: Final = ("seen", "extra", "latest", "again", *_HELD)
_SLOTS: Final = ("padding", "arrival")
"""The fields for the state of the second node of a stage: `RankPadding` behind a `prepare`, and the
arrival of batches behind a `to_device`."""

READ: Final = ("start", "start_place")
"""Where reading can begin, if the source has no random access."""
_LEFT: Final = ("missing", "upto", "count", *READ, "cut", "ended")
"""The items that a rank has left: the state of its ledger."""
_REST: Final = ("batches", "missing", "upto", *READ, "cut")
"""What an earlier number of ranks has left of each epoch."""
RANK_FIELDS: Final = ("total", "lost")
RUN_FIELDS: Final = ("length", "examples")
"""The additional fields of a stream, such as that of `batch`."""

_READING: Final = (*_COMMON, *_ORDERED, "counts")


def blank_entry(
    kind: str, arguments: Mapping[str, Any], *, branches: int = 0, **options: bool
) -> dict[str, Any]:
    """The empty fields of a stage.

    Args:
        kind: the kind of the stage.
        arguments: the arguments that identify the stage.
        branches: how many pipelines it brings in.
        options: ``is_padded``: whether the stage has rank padding.
    """
    if kind == "shard":
        return {}
    is_ordered = arguments.get("ordered", True)
    fields = [*_COMMON, *_FIELDS[kind]]
    if kind in WORKING:
        unwanted = {*_UNORDERED[:-1]} if is_ordered else {"next"}
        fields = [field for field in fields if field not in unwanted]
    if kind == "batch" and not arguments.get("across_epochs"):
        fields.remove("epochs")
    if kind == "mix" and not arguments.get("tokens"):
        fields.remove("spent")
    entry: dict[str, Any] = dict.fromkeys(fields)
    if kind == "zip":
        entry["ahead"] = {
            str(branch): dict.fromkeys((*_COMMON, *_HELD)) for branch in range(branches + 1)
        }
    if kind in WORKING:
        entry["counts"] = dict.fromkeys(_COUNTS if is_ordered else ("beyond", *_COUNTS))
    if options.get("is_padded"):
        entry["padding"] = dict.fromkeys((*_COMMON, *_PADDING))
    if kind == "to_device":
        entry["arrival"] = dict.fromkeys(_COMMON)
    return entry


def blank_read(*, is_addressed: bool, is_async: bool, has_ledger: bool) -> dict[str, Any]:
    """The empty fields of a source.

    Args:
        is_addressed: whether reading can begin at any item.
        is_async: whether a task of its own reads the source.
        has_ledger: whether a rank records which items are left.
    """
    fields = _COMMON if is_addressed else (*_COMMON, *READ)
    read: dict[str, Any] = {"read": dict.fromkeys(fields)}
    if has_ledger:
        read["read"]["left"] = dict.fromkeys(_LEFT)
    if is_async:
        read["reading"] = {**dict.fromkeys(_READING), "counts": dict.fromkeys(_COUNTS)}
    return read


def blank_rest() -> dict[str, Any]:
    """The empty fields for what an earlier number of ranks has left."""
    return dict.fromkeys(("total", "epochs", *_REST))


_TALLY: Final = _COUNTS[1:]
_MOST: Final = 2**63


def check_values(document: dict[str, Any]) -> None:
    """Check the values in a document whose shape is that of its pipeline.

    Raises:
        DocumentError: a field has a value that no state has.
        KeyError, TypeError, AttributeError: its shape is another one.
    """
    for part in _parts(document):
        _check_slot("read", part["read"])
        if "reading" in part:
            _check_slot("reading", part["reading"])
        for entry in part["stages"]:
            kind = entry["kind"]
            if kind != "shard":
                fields = (*_COMMON, *_FIELDS[kind], "counts", *_SLOTS)
                _check_slot(kind, {name: entry[name] for name in fields if name in entry})
                _check_lengths(entry)


def _check_slot(where: str, slot: dict[str, Any]) -> None:
    for name, value in slot.items():
        if isinstance(value, dict) and (name in _SLOTS or (where, name) == ("read", "left")):
            _check_slot(f"{where}.{name}", value)
        elif isinstance(value, dict) and name == "ahead":
            for number, one in value.items():
                _check_slot(f"{where}.{name}.{number}", one)
        elif isinstance(value, dict) and name == "counts":
            is_blank = value["upto"] is None
            if not is_blank and not all(_is_number(value[one]) for one in _TALLY):
                raise DocumentError(f"{where}.counts: got {value!r}; expected numbers")
        elif value is not None:
            is_valid, expected = _VALUES[name]
            if name == "from" and "held" not in slot:
                is_valid, expected = _is_number, _A_NUMBER
            if not is_valid(value):
                raise DocumentError(f"{where}.{name}: got {str(value)[:40]!r}; expected {expected}")
        elif name == "components" and slot.get("example") is not None:
            raise DocumentError(f"{where}.components: got None; expected one for the example")


def _check_lengths(entry: dict[str, Any]) -> None:
    """Check that lists that belong together have the same length."""
    branches = 1 + len(entry.get("others", ()))
    for name in ("running", "spent"):
        if entry.get(name) is not None and len(entry[name]) != branches:
            raise DocumentError(f"{name}: got {len(entry[name])} values; expected {branches}")
    chosen = entry.get("chosen")
    if chosen is not None and chosen >= branches:
        raise DocumentError(f"chosen: got {chosen}; expected less than {branches}")
    kind: Any = entry.get("example")
    components: Any = entry.get("components")
    if kind == "one" and len(components) != 1:
        raise DocumentError(f"components: got {len(components)}; expected 1")
    if kind in ("mapping", "named tuple") and len({type(label) for label, _ in components}) > 1:
        raise DocumentError("components: got labels of several types; expected one type")


def _is_number(value: Any) -> bool:
    return is_int(value) and 0 <= value < _MOST


def _is_amount(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, float) and 0 <= value < inf)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_place(value: Any) -> bool:
    return _is_text(value) or _is_number(value)


def _is_anything(_: Any) -> bool:
    return True


def _list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _pairs_of(
    is_first: Callable[[Any], bool], is_second: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    return _list_of(
        lambda pair: (
            isinstance(pair, list) and len(pair) == 2 and is_first(pair[0]) and is_second(pair[1])
        )
    )


def _is_cut(value: Any) -> bool:
    """Return whether it says which parts of items were given out."""
    return _pairs_of(_is_number, lambda parts: parts is None or _is_cut(parts))(value)


def _is_repeated(value: Any) -> bool:
    """Return whether it is a list of rows, or of rows with their pieces."""
    return _list_of(_is_text)(value) or _pairs_of(_is_text, _list_of(_is_number))(value)


def _is_layout(value: Any) -> bool:
    """Return whether it says what the components of an example are."""
    return _list_of(lambda one: _is_text(one) or isinstance(one, list))(value)


_A_NUMBER: Final = "a number"
_NUMBERS: Final = (
    *("given", "made", "drawn", "buffered", "ready", "seen", "extra", "latest", "total", "epoch"),
    *("left", "gap", "chosen", "upto", "count", "start"),
)
_TEXTS: Final = ("taken", "from", "held", "missing", "example", "places", "epochs")
_VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(_NUMBERS, (_is_number, _A_NUMBER)),
    **dict.fromkeys(_TEXTS, (_is_text, "text")),
    "next": (_is_place, "a number or text"),
    "partial": (_pairs_of(_is_number, _list_of(_is_number)), "numbers, each with a list of them"),
    "pieces": (_list_of(_is_number), "a list of numbers"),
    "counts": (_list_of(_is_number), "a list of numbers"),
    "running": (_list_of(lambda one: isinstance(one, bool)), "a list of bools"),
    "spent": (_list_of(_is_amount), "a list of amounts"),
    "again": (_is_repeated, "a list of rows"),
    "components": (_is_layout, "text"),
    "cut": (_is_cut, "a list of items with their parts"),
    "ended": (_pairs_of(_is_number, _is_number), "a list of pairs of numbers"),
    "start_place": (_is_anything, "a place"),  # only the source knows what it is
}
"""What the value of a field must be, unless it is empty, and how a message says that."""


# What identifies a pipeline.


def identity(document: Any) -> Any:
    """The part of a document that identifies its pipeline: the source and the arguments of stages.

    The document may come from a user, so nothing in it is sure to have the right type.
    """
    if not isinstance(document, Mapping):
        return document
    stages = document.get("stages")
    listed = [_arguments(one) for one in stages] if isinstance(stages, list | tuple) else stages
    return {"source": document.get("source"), "stages": listed}


def _arguments(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    kind = entry.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    state = {*RANK_FIELDS} if fields is None else {*_COMMON, *fields, *_SLOTS, "function"}
    found = {key: value for key, value in entry.items() if key not in state}
    if isinstance(found.get("others"), list | tuple):
        found["others"] = [identity(one) for one in found["others"]]
    return found


def shard_in(document: Any) -> Mapping[str, Any] | None:
    """The entry of the `shard` in a document; ``None`` without one."""
    stages = document.get("stages") if isinstance(document, Mapping) else None
    for entry in stages if isinstance(stages, list | tuple) else ():
        if isinstance(entry, Mapping) and entry.get("kind") == "shard":
            return entry
    return None


def cleared(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document with empty fields."""
    part = dict(document)
    for slot in ("read", "reading"):
        if slot in part:
            part[slot] = _emptied(part[slot])
    part["stages"] = [_cleared_entry(entry) for entry in part["stages"]]
    return part


def _cleared_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = {*RANK_FIELDS} if entry["kind"] == "shard" else {*_COMMON, *_FIELDS[entry["kind"]]}
    found = {
        key: _emptied(value) if key in fields or key in _SLOTS else value
        for key, value in entry.items()
    }
    if "others" in found:
        found["others"] = [cleared(one) for one in found["others"]]
    return found


def _emptied(value: Any) -> Any:
    return {key: _emptied(one) for key, one in value.items()} if isinstance(value, dict) else None


# The states of nodes.


def _parts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of a pipeline and of those that are mixed in, in the order of building."""
    yield document
    for entry in document["stages"]:
        for other in entry.get("others", ()):
            yield from _parts(other)


def write_node(document: dict[str, Any], node: State) -> None:
    """Write the state of the last node into a document."""
    shard = shard_in(document)
    if shard is not None and "total" in node:
        shard.update(  # type: ignore[attr-defined]  # a dict
            {field: node[field] for field in RANK_FIELDS if field in node}
        )
        for part, one in zip(_parts(document), made(node.get("left", ())), strict=False):
            _fill(part["read"]["left"], one)
        node = node["upstream"]
    _write(document, node)


def _write(part: dict[str, Any], state: State | None) -> None:
    for entry in reversed(part["stages"]):
        state = made(state)
        if entry["kind"] in _COMBINING and state is not None:
            _fill(entry, {key: one for key, one in state.items() if key != "branches"})
            branches = state["branches"]
            if "ahead" in entry:
                branches = list(map(_fill, entry["ahead"].values(), branches))
            state, *others = branches
            for other, one in zip(entry["others"], others, strict=True):
                _write(other, one)
        elif entry["kind"] != "shard":
            for slot in _SLOTS:
                if slot in entry:
                    state = _fill(entry[slot], state)
            state = _fill(entry, state)
    if "reading" in part:
        state = _fill(part["reading"], state)
    _fill(part["read"], state)


def _fill(slot: dict[str, Any], state: State | None) -> State | None:
    """Write the state of a node. Returns the state of the node before."""
    upstream: State | None = None
    state = made(state)
    for key, value in () if state is None else state.items():
        if key == "upstream":
            upstream = value
        elif key in ("shape", "tape"):
            upstream = _fill(slot, value) or upstream
        elif key == "start_place" and value is not None:  # it may contain tuples
            slot[key] = plain(value)
        else:
            slot[key] = value
    return upstream


def is_begun(document: dict[str, Any]) -> bool:
    """Whether a document has a state of nodes."""
    return _read(document) is not None


def node_in(document: dict[str, Any]) -> State | None:
    """Return the state of the last node from a document; ``None`` before the first batch."""
    node, shard = _read(document), shard_in(document)
    if node is None or shard is None or shard.get("total") is None:
        return node
    given = {"epoch": document["epoch"], "given": document["batches"], "upstream": node}
    found = {field: shard[field] for field in RANK_FIELDS if shard[field] is not None}
    if "lost" not in found:
        found["left"] = [_said(part["read"]["left"]) for part in _parts(document)]
    return {**given, **found}


def _read(part: dict[str, Any]) -> State | None:
    state = _said(part["read"], without=("left",)) or None
    if "reading" in part:
        state = _with_upstream(_said(part["reading"], without=("counts",)), state)
    for entry in part["stages"]:
        kind = entry["kind"]
        if kind == "shard":
            continue
        fields = (*_COMMON, *(one for one in _FIELDS[kind] if one not in _LAYOUT))
        own = _said({field: entry[field] for field in fields if field in entry})
        if kind in WORKING:
            own.pop("counts", None)
        if kind in _COMBINING:
            branches = [state, *map(_read, entry["others"])]
            ahead = own.pop("ahead", None)
            if ahead is not None:
                branches = [
                    _with_upstream(_said(slot), one, holds=True)
                    for slot, one in zip(ahead.values(), branches, strict=True)
                ]
            state = {**own, "branches": branches} if own else None
            continue
        state = _with_upstream(own, state, holds="held" in fields)
        for slot in reversed(_SLOTS):
            if slot in entry:
                state = _with_upstream(_said(entry[slot]), state, holds=slot == "padding")
    return state


def _with_upstream(own: State, upstream: State | None, *, holds: bool = False) -> State | None:
    if not own or not holds:
        return {**own, "upstream": upstream} if own else None
    tape = {key: own.pop(key) for key in _HELD if key in own}
    given: State = {key: own.pop(key) for key in _COMMON if key in own}
    return {**given, "shape": own, "tape": {**tape, "upstream": upstream}}


def _said(fields: Mapping[str, Any], without: Sequence[str] = ()) -> State:
    """The fields that are not empty."""
    return {key: one for key, one in fields.items() if one is not None and key not in without}


# The counts of items, and the layouts that the first examples have fixed.


def _working(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of all stages with workers, in the order of building."""
    if "reading" in document:
        yield document["reading"]
    for entry in document["stages"]:
        yield from chain.from_iterable(map(_working, entry.get("others", ())))
        if entry["kind"] in WORKING:
            yield entry


def _making(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of all stages that make rows of several others."""
    for entry in document["stages"]:
        yield from chain.from_iterable(map(_making, entry.get("others", ())))
        if entry["kind"] in MAKING:
            yield entry


def write_tallies(document: dict[str, Any], tallies: Sequence[State]) -> None:
    """Write the counts of items of all stages with workers."""
    for entry, tally in zip(_working(document), tallies, strict=False):
        entry["counts"] = tally["counts"]
    signs = [tally["quarantine"] for tally in tallies]
    if any(signs):
        document["quarantine"] = signs


def read_tallies(document: dict[str, Any]) -> list[State]:
    """Read the counts of items from a document; empty if no run has begun."""
    found = list(_working(document))
    if not found or found[0]["counts"]["upto"] is None:
        return []
    signs = document.get("quarantine") or [""] * len(found)
    return [
        {"counts": entry["counts"], "quarantine": sign}
        for entry, sign in zip(found, signs, strict=True)
    ]


def write_layouts(document: dict[str, Any], layouts: Sequence[Mapping[str, Any] | None]) -> None:
    """Write the layouts that the first examples have fixed."""
    for entry, layout in zip(_making(document), layouts, strict=False):
        entry.update(layout or {})


def read_layouts(document: dict[str, Any]) -> list[Mapping[str, Any] | None]:
    """Read these layouts from a document; empty before the first example."""
    found: list[Mapping[str, Any] | None] = [
        None if entry["example"] is None else {field: entry[field] for field in _LAYOUT}
        for entry in _making(document)
    ]
    return found if any(found) else []


# What another number of ranks has left.


def write_rest(document: dict[str, Any], rest: State | None) -> None:
    """Write what an earlier number of ranks has left.

    It is in columns: each field is a list with a value for each epoch, or for each epoch and
    source. So the fields do not depend on the number of epochs.
    """
    if "rest" not in document or rest is None:
        return
    epochs = list(rest["epochs"].values())
    columns: dict[str, Any] = {
        field: [[source.get(field) for source in one["sources"]] for one in epochs]
        for field in _REST[1:]
    }
    document["rest"] = {
        "total": rest["total"],
        "epochs": [int(epoch) for epoch in rest["epochs"]],
        "batches": [one["batches"] for one in epochs],
        **columns,
    }


def read_rest(document: Mapping[str, Any]) -> State | None:
    """Read from a document what an earlier number of ranks has left; ``None`` if it has none."""
    rest = document.get("rest")
    if rest is None or rest["epochs"] is None:
        return None
    found = {}
    for at, epoch in enumerate(rest["epochs"]):
        columns = zip(*(rest[field][at] for field in _REST[1:]), strict=True)
        sources = [
            {"upto": None, **_said(dict(zip(_REST[1:], values, strict=True)))} for values in columns
        ]
        found[str(epoch)] = {"batches": rest["batches"][at], "sources": sources}
    return {"total": rest["total"], "epochs": found}
