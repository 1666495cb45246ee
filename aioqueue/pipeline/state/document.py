"""States as documents: the state of each stage beside its arguments, in plain JSON types.

The state of a node contains the state of the node before, so nested states run from the last stage
to the source. People want to read them stage by stage, from the source on. So a state is written
into a *document*, which has an entry for the source and for each stage: what identifies it, and
fields for its state. What an entry holds stands in the class of its stage; see `BaseStage`.

`write_node` and `node_in` convert between both forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aioqueue.pipeline.nodes.deferred import made
from aioqueue.pipeline.nodes.rows import State
from aioqueue.pipeline.nodes.state_fields import (
    LAYOUT,
    RANK_FIELDS,
    READ,
    READING,
    REST,
    own_fields,
    read_fields,
    write_fields,
)
from aioqueue.pipeline.stages.base import stage_class

VERSION: Final = 3
"""The version of the states of pipelines. A state of another version is refused by name."""

RUN_FIELDS: Final = ("length", "examples")
"""The additional fields of a stream, such as that of `batch`."""


def check_values(document: dict[str, Any]) -> None:
    """Check the values in a document whose shape is that of its pipeline.

    Raises:
        DocumentError: a field has a value that no state has.
        KeyError, TypeError, AttributeError: its shape is another one.
    """
    for part in _parts(document):
        READ.check("read", part["read"])
        if "reading" in part:
            READING.check("reading", part["reading"])
        for entry in part["stages"]:
            stage_class(entry["kind"]).check_entry(entry)


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
    state = {*RANK_FIELDS}
    try:
        kind = stage_class(entry["kind"])
    except (KeyError, TypeError, AttributeError):
        pass  # somebody else's position: the comparison names what differs
    else:
        state = {*kind.entry_fields}
        if kind.has_state:
            state.add("function")  # a run may continue after you mend one
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
    part = dict(document)
    for slot in ("read", "reading"):
        if slot in part:
            part[slot] = _emptied(part[slot])
    part["stages"] = [_cleared_entry(entry) for entry in part["stages"]]
    return part


def _cleared_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = stage_class(entry["kind"]).entry_fields
    found = {key: _emptied(value) if key in fields else value for key, value in entry.items()}
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
    shard = shard_in(document)
    if shard is not None and "total" in node:
        shard.update(  # type: ignore[attr-defined]  # a dict
            {field: node[field] for field in RANK_FIELDS if field in node}
        )
        for part, one in zip(_parts(document), made(node.get("left", ())), strict=False):
            write_fields(part["read"]["left"], one)
        node = node["upstream"]
    _write(document, node)


def _write(part: dict[str, Any], state: State | None) -> None:
    for entry in reversed(part["stages"]):
        state, *others = stage_class(entry["kind"]).write_entry(entry, state)
        for other, one in zip(entry.get("others", ()), others, strict=True):
            _write(other, one)
    if "reading" in part:
        state = write_fields(part["reading"], state)
    write_fields(part["read"], state)


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
        found["left"] = [_without_none(part["read"]["left"]) for part in _parts(document)]
    return {**given, **found}


def _read(part: dict[str, Any]) -> State | None:
    state: State | None = own_fields(part["read"], READ.fields) or None
    if "reading" in part:
        state = read_fields(part["reading"], READING.fields, state)
    for entry in part["stages"]:
        others = list(map(_read, entry.get("others", ())))
        state = stage_class(entry["kind"]).read_entry(entry, state, others)
    return state


def _without_none(fields: Mapping[str, Any]) -> State:
    return {key: one for key, one in fields.items() if one is not None}


# The counts of items, and the layouts that the first examples have fixed.


def _working(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of all stages with workers, in the order of building."""
    if "reading" in document:
        yield document["reading"]
    for entry in document["stages"]:
        for other in entry.get("others", ()):
            yield from _working(other)
        if stage_class(entry["kind"]).has_workers():
            yield entry


def _making(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of all stages that make rows of several others."""
    for entry in document["stages"]:
        for other in entry.get("others", ()):
            yield from _making(other)
        if stage_class(entry["kind"]).fixes_layout():
            yield entry


def write_tallies(document: dict[str, Any], tallies: Sequence[State]) -> None:
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
    for entry, layout in zip(_making(document), layouts, strict=False):
        entry.update(layout or {})


def read_layouts(document: dict[str, Any]) -> list[Mapping[str, Any] | None]:
    """Read these layouts from a document; empty before the first example."""
    found: list[Mapping[str, Any] | None] = [
        None if entry["example"] is None else {field: entry[field] for field in LAYOUT}
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
        for field in REST[1:]
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
        columns = zip(*(rest[field][at] for field in REST[1:]), strict=True)
        sources = [
            {"upto": None, **_without_none(dict(zip(REST[1:], values, strict=True)))}
            for values in columns
        ]
        found[str(epoch)] = {"batches": rest["batches"][at], "sources": sources}
    return {"total": rest["total"], "epochs": found}
