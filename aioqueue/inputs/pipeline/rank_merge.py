"""From the positions of all ranks of one run to one that any other number of ranks goes on from.

Ranks deal out one common order, place by place, so the items of all of them have places in it. An
item that a rank has taken and not delivered is left, and so is all that nobody has taken yet. What
is left of an epoch is dealt out to the new ranks like an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_flag
from aioqueue.inputs.core.example_layout import Layout
from aioqueue.inputs.core.positions import (
    Position,
    differences,
)
from aioqueue.inputs.core.ranks import WHOLE, RemainingItems
from aioqueue.inputs.pipeline.checkpoint import (
    identity_in,
    is_merged,
    merged_position,
    of_any_rank,
    standing_in,
)
from aioqueue.inputs.pipeline.node import State
from aioqueue.inputs.pipeline.progress import ResumePoint, packed, unpacked
from aioqueue.inputs.pipeline.provenance import Cut
from aioqueue.inputs.pipeline.rank_state import MOST_APART, cut_of, cut_state, rest_of, start_of
from aioqueue.inputs.pipeline.state_document import shard_in

__all__ = ("merge_positions",)

_NO_LEDGER: Final = "its source is gone through by `async for` alone"

_NOTHING: Final[State] = {"missing": "", "upto": 0}
"""What the ledger of an epoch says of which nothing was taken."""


def merge_positions(positions: Iterable[Mapping[str, Any]], *, lockstep: bool = True) -> Position:
    """Make one position of those of all ranks, from which any number of ranks can go on.

    Each rank of the new number is given the same one: ``epochs(n, resume=position)`` with
    ``shard(rank, ranks)`` of its own. What the earlier ranks have not delivered of their epoch is
    dealt out to the new ones, each example to one of them; later epochs are as they would have
    been. Positions of the new ranks can be merged again. Counts of items begin anew, since each
    rank has those of its own items; batches in journals go on in number, in new files. Batches keep
    the dtypes that the first examples have decided on; where these were not the same on all ranks,
    they have the one that has all values of the others.

    Args:
        positions: what ``state_dict()`` gave on every rank, in any order.
        lockstep: whether all ranks have to have handed out as many batches since the run began, as
            in data-parallel training. If not, their positions are not of one step: the files are
            not of one checkpoint, say, because the ranks were killed while they wrote them.
            ``False`` for ranks that go at their own pace, each of which saves what it has done.

    Returns:
        A position for all ranks.

    Raises:
        InvalidArgumentError: there is none, or not one of each rank; they are not positions of one
            run, or not of one step; the first examples of ranks have decided on dtypes of batches
            that do not go together; or the stages cannot be gone on with by another number of
            ranks, which are `take`, ``mix(..., stop="first")`` and batches that go across epochs.
            The message names the field, and both values.
    """
    checked_flag(lockstep, "lockstep")
    ranks = _ranks_of(positions)
    _check_same_run(ranks)
    if lockstep:
        _check_lockstep(ranks)
    first = min(one.standing.epoch for one in ranks)
    last = max(epoch for one in ranks for epoch in (one.standing.epoch, *one.rests()))
    ahead = max(ranks, key=lambda one: one.standing.epoch)
    if ahead.standing.epoch - first > MOST_APART:
        raise InvalidArgumentError(
            f"positions: got epoch {ahead.standing.epoch} of rank {ahead.rank} and {first} of"
            f" another one; expected at most {MOST_APART} epochs in between"
        )
    merged = {epoch: _merged(ranks, epoch) for epoch in range(first, last + 1)}
    epochs = {str(epoch): one for epoch, one in merged.items() if one is not None}
    batches = epochs.get(str(first), {"batches": 0})["batches"]
    rest = {"total": max(one.total for one in ranks), "epochs": epochs}
    # Each rank counts its own items, and other items are its own now; so are journals.
    handed = max(one.standing.handed for one in ranks)
    standing = ResumePoint(
        first,
        batches,
        ranks[0].standing.skip,
        rest=rest,
        handed=handed,
        layouts=_decided(ranks),
    )
    return Position(merged_position(ranks[0].position, standing))


class _Rank(NamedTuple):
    """The position of one rank."""

    rank: int
    position: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    standing: ResumePoint

    @property
    def total(self) -> int:
        """How many batches it has handed out, in all epochs."""
        standing = self.standing
        return int(
            (standing.rest or {"total": 0} if standing.node is None else standing.node)["total"]
        )

    @property
    def ledgers(self) -> Sequence[State]:
        """What its ledgers say of its epoch, source by source; none before the first batch."""
        found: Sequence[State] = (self.standing.node or {"left": ()})["left"]
        return found

    def left(self, epoch: int, source: int) -> State:
        """What is left of an epoch of a source."""
        if self.standing.epoch > epoch:
            ledger = self.ledgers[source] if source < len(self.ledgers) else _NOTHING
            count = dict(ledger.get("ended", ())).get(epoch, 0)
            return {"missing": "", "upto": count, "count": count}
        is_begun = self.standing.epoch == epoch and source < len(self.ledgers)
        return self.ledgers[source] if is_begun else _NOTHING

    def rests(self) -> dict[int, State]:
        """What an earlier number of ranks had left, by epoch."""
        return {
            int(at): one for at, one in (self.standing.rest or {"epochs": {}})["epochs"].items()
        }


def _ranks_of(positions: Any) -> list[_Rank]:
    """The positions of all ranks, in their order.

    Raises:
        InvalidArgumentError: there is not one of each.
    """
    if not isinstance(positions, Iterable) or isinstance(positions, str | bytes | Mapping):
        raise InvalidArgumentError(
            f"positions: got a {type(positions).__name__}; expected a list of what state_dict()"
            " gave on each rank"
        )
    found: dict[int, tuple[int, _Rank]] = {}
    counts: dict[int, int] = {}
    for place, position in enumerate(positions):
        one, count = _rank_of(position, f"positions[{place}]")
        if one.rank in found:
            raise InvalidArgumentError(
                f"positions: got rank {one.rank} twice, as positions[{found[one.rank][0]}] and"
                f" positions[{place}]; expected one of each rank"
            )
        found[one.rank] = place, one
        counts[one.rank] = count
    if not found:
        raise InvalidArgumentError("positions: got none; expected one of each rank")
    for rank, count in counts.items():
        other = next(iter(counts))
        if count != counts[other]:
            raise InvalidArgumentError(
                f"positions: got ranks {count} of rank {rank} and {counts[other]} of rank {other};"
                " expected the same: they were saved by different numbers of ranks"
            )
    missing = sorted({*range(count)} - {*found})
    if missing:
        raise InvalidArgumentError(
            f"positions: got those of the ranks {sorted(found)} of {count}; expected {missing} too"
        )
    return [found[rank][1] for rank in range(count)]


def _rank_of(position: Any, name: str) -> tuple[_Rank, int]:
    """One position, and how many ranks there are."""
    try:
        fingerprint = identity_in(position)
        standing = standing_in(position)
    except InvalidArgumentError as error:
        said = str(error).removeprefix("position: ")
        raise InvalidArgumentError(f"{name}: {said}") from error
    _check_stages(fingerprint, name)
    if is_merged(fingerprint):
        raise InvalidArgumentError(
            f"{name}: got one that merge_positions has made; expected what each rank has saved"
        )
    node = standing.node
    if node is not None and "left" not in node:
        why = node.get("lost", _NO_LEDGER)
        raise InvalidArgumentError(
            f"{name}: got one without what is left of the items ({why}); expected one that another"
            " number of ranks can go on from"
        )
    shard = shard_in(fingerprint) or {}
    return _Rank(shard["rank"], position, fingerprint, standing), shard["ranks"]


def _check_stages(fingerprint: Mapping[str, Any], name: str) -> None:
    """Check that any number of ranks can go on with these stages."""
    if shard_in(fingerprint) is None:
        raise InvalidArgumentError(
            f"{name}: got one of a pipeline that is not cut into ranks; expected"
            " .shard(rank, ranks) in it, behind what is mixed in (shard(0, 1) for one rank)"
        )
    for stage in fingerprint["stages"]:
        why = None
        if stage["kind"] == "take":
            why = "which counts what one rank is given"
        elif stage.get("across_epochs"):
            why = "across epochs, so that no epoch can be gone on with by itself"
        elif stage.get("stop") == "first":
            why = "which stops with the first that ends, as each rank has drawn (stop='first')"
        if why is not None:
            raise InvalidArgumentError(
                f"{name}: got one of a pipeline with `{stage['kind']}`, {why}; expected stages"
                " that another number of ranks can go on with"
            )
        for other in stage.get("others", ()):
            _check_stages(other, name)


def _check_same_run(ranks: Sequence[_Rank]) -> None:
    """Check that positions are of one run."""
    first = ranks[0]
    ours = of_any_rank(first.fingerprint)
    for one in ranks[1:]:
        found = [
            *differences(of_any_rank(one.fingerprint), ours, ""),
            *differences(one.standing.skip, first.standing.skip, "skip"),
        ]
        for epoch in one.rests().keys() | first.rests().keys():
            if epoch >= max(one.standing.epoch, first.standing.epoch):
                rests = one.rests().get(epoch), first.rests().get(epoch)
                found += differences(*rests, f"rest.epochs.{epoch}")
        for field, theirs, other in found:
            is_seed = field.endswith(".seed")
            hint = ", or the source has no seed, so that each rank draws one" if is_seed else ""
            raise InvalidArgumentError(
                f"positions: got {field} {theirs} of rank {one.rank} and {other} of rank 0;"
                f" expected the same: they are of different runs{hint}"
            )


def _check_lockstep(ranks: Sequence[_Rank]) -> None:
    """Check that all ranks have made as many steps."""
    for one in ranks[1:]:
        if one.total != ranks[0].total:
            raise InvalidArgumentError(
                f"positions: got {one.total} batches of rank {one.rank} and {ranks[0].total} of"
                " rank 0 since the run began; expected as many of each: those of one checkpoint,"
                " which all ranks have saved at the same step (lockstep=False is for ranks that go"
                " at their own pace)"
            )


def _decided(ranks: Sequence[_Rank]) -> list[Mapping[str, Any] | None]:
    """What the first examples have decided, stage by stage, from now on the same for all ranks.

    Raises:
        InvalidArgumentError: ranks have decided what does not go together.
    """
    stages = zip_longest(*(one.standing.layouts for one in ranks))
    return [_agreed(f"layouts.{at}", layouts) for at, layouts in enumerate(stages)]


def _agreed(field: str, layouts: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """What examples of all ranks can be, one layout of each; ``None`` if none has decided."""
    agreed: Mapping[str, Any] | None = None
    for rank, layout in enumerate(layouts):
        if agreed is None or layout is None or layout == agreed:
            agreed = agreed or layout
            continue
        joined = Layout.of_plain(agreed).joined(Layout.of_plain(layout))
        if joined is None:
            raise InvalidArgumentError(
                f"positions: got {field} {layout} of rank {rank} and {agreed} of those before it,"
                " as the first example of each has decided; expected the same, or dtypes of which"
                " one has all values of the others: let the function make the same of all items"
            )
        agreed = joined.plain()
    return agreed


def _merged(ranks: Sequence[_Rank], epoch: int) -> State | None:
    """What is left of an epoch; ``None`` for all of it."""
    before = next((one.rests()[epoch] for one in ranks if epoch in one.rests()), None)
    earlier = before["sources"] if before else [None] * max(len(one.ledgers) for one in ranks)
    drops = (shard_in(ranks[0].fingerprint) or {})["uneven"] == "drop"
    sources = [
        _left_of_source([one.left(epoch, at) for one in ranks], rest, drops=drops)
        for at, rest in enumerate(earlier)
    ]
    counts = [one.standing.batches for one in ranks if one.standing.epoch == epoch]
    batches = max(counts, default=before["batches"] if before else 0)
    # All items may be left and some of their examples not.
    if before is None and not batches and all(one["upto"] == 0 for one in sources):
        return None
    return {"batches": batches, "sources": sources}


def _left_of_source(lefts: Sequence[State], before: State | None, *, drops: bool) -> State:
    """What is left of an epoch of one source.

    Args:
        lefts: what each rank has left of what it was dealt, by its own numbers.
        before: what was dealt out, if it was not all.
        drops: whether ranks drop the items of the last round.
    """
    dealt = WHOLE if before is None else rest_of(before)
    taken = max(left["upto"] for left in lefts)  # rounds that somebody has begun
    places = {
        place
        for rank, left in enumerate(lefts)
        for number in _own_numbers(left, taken)
        if (place := dealt.place_of(number * len(lefts) + rank)) is not None
    }
    # What one number of ranks would have dropped is dealt out to another, unless all is over.
    if all("count" in left for left in lefts) and not (drops and places):
        upto = None
    else:
        behind = taken * len(lefts)
        places.update(dealt.missing[behind:])
        upto = dealt.place_of(max(behind, len(dealt.missing)))
    while upto is not None and upto - 1 in places:
        upto -= 1
        places.remove(upto)
    left: State = {"missing": packed(sorted(places)), "upto": upto}
    begin = min(_begins(lefts, dealt), default=None, key=lambda begin: begin[0])
    if begin is not None:
        left |= {"start": begin[0], "start_place": begin[1]}
    cuts = {
        place: cut
        for place, cut in _cuts(lefts, dealt, cut_of((before or {}).get("cut", ()))).items()
        if place in places or (upto is not None and place >= upto)
    }
    return {**left, "cut": cut_state(cuts)} if cuts else left


def _own_numbers(left: State, taken: int) -> Iterator[int]:
    """The numbers of the items that a rank has left in the rounds that somebody has begun."""
    yield from unpacked(left["missing"])
    if "count" not in left:
        yield from range(left["upto"], taken)


def _begins(lefts: Sequence[State], dealt: RemainingItems) -> Iterator[tuple[int, Any]]:
    """Where each rank could begin to read: behind so many items of the common order."""
    for left in lefts:
        if "start" in left:
            number, place = start_of(left)
            if dealt is WHOLE:
                yield number * len(lefts), place
            else:
                yield dealt.begin if place is None else (place[0], place[1])
        elif left["missing"] or "count" not in left:
            yield dealt.begin


def _cuts(lefts: Sequence[State], dealt: RemainingItems, before: Cut) -> Cut:
    """The parts of items that were delivered, by place in the common order."""
    cuts = before
    for rank, left in enumerate(lefts):
        for number, cut in cut_of(left.get("cut", ())).items():
            place = dealt.place_of(number * len(lefts) + rank)
            if place is not None:
                cuts = _joined(cuts, {place: cut})
    return cuts


def _joined(one: Cut, other: Cut) -> Cut:
    """What was delivered in one of them, or in both."""
    joined = dict(one)
    for part, cut in other.items():
        ours = joined.get(part, {})
        joined[part] = None if ours is None or cut is None else _joined(ours, cut)
    return joined
