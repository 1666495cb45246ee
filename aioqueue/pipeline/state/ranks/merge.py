"""Merges the positions of all ranks into one, from which any other number of ranks can resume.

The ranks of a run deal out one common order of items, place by place: with three ranks, rank 0 gets
the places 0, 3, 6 and so on. A *round* is one place for each rank. A rank numbers its own items, so
its item ``number`` has the place ``number * ranks + rank`` in the common order.

An item is left if its rank has taken it and not delivered it, or if no rank has taken it yet. The
items that are left of an epoch are dealt out to the new ranks as if they were an epoch of their
own. After a second change of the number of ranks, the "common order" is what the first one had
left; `RemainingItems.place_of` leads from there back to places in the whole epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import checked_flag
from aioqueue.errors import with_article
from aioqueue.items.position_file import Position
from aioqueue.items.positions import differences
from aioqueue.items.provenance import DeliveredParts
from aioqueue.pipeline.batches.layout import Layout
from aioqueue.pipeline.nodes.progress import ResumePoint, packed, unpacked
from aioqueue.pipeline.nodes.rows import State
from aioqueue.pipeline.stages.base import stage_class
from aioqueue.pipeline.state.checkpoint import (
    identity_in,
    is_merged,
    merged_position,
    resume_point_in,
    without_rank,
)
from aioqueue.pipeline.state.document import shard_in
from aioqueue.pipeline.state.ranks.ledger import MOST_APART, cut_of, cut_state, rest_of, start_of
from aioqueue.sources.file_parts import left_in_files, segments_in
from aioqueue.sources.shards import WHOLE, RemainingItems

_NO_LEDGER: Final = "only `async for` can iterate over its source"

_NOTHING: Final[State] = {"missing": "", "upto": 0}
"""The state of a ledger for an epoch from which nothing was taken."""


def merge_positions(positions: Iterable[Mapping[str, Any]], *, lockstep: bool = True) -> Position:
    """Merge the positions of all ranks into one, from which any number of ranks can resume.

    Give the same result to each new rank: call ``epochs(n, resume=position)`` with ``shard(rank,
    ranks)`` of its own. The examples of the epoch that the earlier ranks have not delivered are
    dealt out to the new ranks, each to one of them. Later epochs are not affected. You can merge
    the positions of the new ranks again. Counts of items begin anew, because each rank counts its
    own items. The numbers of batches in journals continue, in new files. Batches keep the dtypes
    that the first examples have fixed; if these differed between ranks, batches have the dtype that
    can hold the values of all.

    Args:
        positions: what ``state_dict()`` returned on every rank, in any order.
        lockstep: check that all ranks have delivered equally many batches since the run began, as
            in data-parallel training. If they differ, the positions are not from one step: the
            ranks were killed while they wrote the files, say. Pass ``False`` if each rank works at
            its own pace and saves its own progress.

    Returns:
        A position for all ranks.

    Raises:
        InvalidArgumentError: a rank is missing, or is there twice; the positions are not of one
            run, or not of one step; the ranks have fixed dtypes of batches that do not fit
            together; or a stage cannot continue with another number of ranks: `take`, ``mix(...,
            stop="first")`` or batches across epochs. The message names the field, and both values.
    """
    checked_flag(lockstep, "lockstep")
    ranks = _ranks_of(positions)
    _check_same_run(ranks)
    if lockstep:
        _check_lockstep(ranks)
    # Without lockstep, ranks may be in different epochs. Every epoch that any rank has begun, or
    # that an earlier number of ranks had begun, may have items left.
    first = min(one.resume_point.epoch for one in ranks)
    last = max(epoch for one in ranks for epoch in (one.resume_point.epoch, *one.rests()))
    ahead = max(ranks, key=lambda one: one.resume_point.epoch)
    if ahead.resume_point.epoch - first > MOST_APART:
        raise InvalidArgumentError(
            f"positions: got epoch {ahead.resume_point.epoch} of rank {ahead.rank} and epoch"
            f" {first} of another rank; expected ranks that are at most {MOST_APART} epochs apart"
        )
    # None stands for an epoch that no rank has begun: the new ranks read all of it as usual.
    merged = {epoch: _merged(ranks, epoch) for epoch in range(first, last + 1)}
    epochs = {str(epoch): one for epoch, one in merged.items() if one is not None}
    batches = epochs.get(str(first), {"batches": 0})["batches"]
    rest = {"total": max(one.total for one in ranks), "epochs": epochs}
    # Counts of items and the names of journals are not merged: they are those of the earlier ranks,
    # and a new rank has other items.
    handed = max(one.resume_point.handed for one in ranks)
    resume_point = ResumePoint(
        first,
        batches,
        ranks[0].resume_point.skip,
        rest=rest,
        handed=handed,
        layouts=_merged_layouts(ranks),
    )
    return Position(merged_position(ranks[0].position, resume_point))


class _Rank(NamedTuple):
    """The position of one rank."""

    rank: int
    position: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    resume_point: ResumePoint

    @property
    def total(self) -> int:
        resume_point = self.resume_point
        return int(
            (resume_point.rest or {"total": 0} if resume_point.node is None else resume_point.node)[
                "total"
            ]
        )

    @property
    def ledgers(self) -> Sequence[State]:
        """The states of its ledgers, source by source; empty before the first batch."""
        found: Sequence[State] = (self.resume_point.node or {"left": ()})["left"]
        return found

    def left(self, epoch: int, source: int) -> State:
        """Return what this rank has left of an epoch of a source."""
        if self.resume_point.epoch > epoch:  # this rank has finished the epoch, so nothing is left
            # A rank remembers the counts of the last epochs only (`MOST_APART`); `merge_positions`
            # has refused ranks that are further apart.
            ledger = self.ledgers[source] if source < len(self.ledgers) else _NOTHING
            count = dict(ledger.get("ended", ())).get(epoch, 0)
            return {"missing": "", "upto": count, "count": count}
        # Otherwise the rank is in the epoch, or has not reached it.
        is_begun = self.resume_point.epoch == epoch and source < len(self.ledgers)
        return self.ledgers[source] if is_begun else _NOTHING

    def rests(self) -> dict[int, State]:
        """Return what an earlier number of ranks had left for this run, by epoch."""
        return {
            int(at): one for at, one in (self.resume_point.rest or {"epochs": {}})["epochs"].items()
        }


def _ranks_of(positions: Any) -> list[_Rank]:
    """The positions of all ranks, by rank.

    Raises:
        InvalidArgumentError: a rank is missing, or is there twice.
    """
    if not isinstance(positions, Iterable) or isinstance(positions, str | bytes | Mapping):
        raise InvalidArgumentError(
            f"positions: got {with_article(type(positions).__name__)}; expected a list with"
            " what state_dict() returned on each rank"
        )
    found: dict[int, tuple[int, _Rank]] = {}
    counts: dict[int, int] = {}
    for place, position in enumerate(positions):
        one, count = _rank_of(position, f"positions[{place}]")
        if one.rank in found:
            raise InvalidArgumentError(
                f"positions: got rank {one.rank} twice, as positions[{found[one.rank][0]}] and"
                f" positions[{place}]; expected one position of each rank"
            )
        found[one.rank] = place, one
        counts[one.rank] = count
    if not found:
        raise InvalidArgumentError("positions: got none; expected one position of each rank")
    # Before the search for missing ranks: two numbers of ranks do not say which ones are missing.
    for rank, count in counts.items():
        other = next(iter(counts))
        if count != counts[other]:
            raise InvalidArgumentError(
                f"positions: got ranks {count} of rank {rank} and {counts[other]} of rank {other};"
                " expected the same number, but runs with different numbers of ranks saved them"
            )
    missing = sorted({*range(count)} - {*found})
    if missing:
        raise InvalidArgumentError(
            f"positions: got those of the ranks {sorted(found)} of {count}; expected also those of"
            f" {missing}"
        )
    return [found[rank][1] for rank in range(count)]


def _rank_of(position: Any, name: str) -> tuple[_Rank, int]:
    """Check one position. Returns it, and the number of ranks of its run."""
    try:
        fingerprint = identity_in(position)
        resume_point = resume_point_in(position)
    except InvalidArgumentError as error:
        message = str(error).removeprefix("position: ")
        raise InvalidArgumentError(f"{name}: {message}") from error
    _check_stages(fingerprint, name)
    if is_merged(fingerprint):
        raise InvalidArgumentError(
            f"{name}: got a position that merge_positions has returned; expected one that a rank"
            " has saved"
        )
    node = resume_point.node
    # A position of an epoch that has begun must say which items are left. It does not if a stage
    # made that impossible (`lost`), or if the source has no ledger.
    if node is not None and "left" not in node:
        why = node.get("lost", _NO_LEDGER)
        raise InvalidArgumentError(
            f"{name}: got a position that does not say which items are left ({why}); expected one"
            " from which another number of ranks can resume"
        )
    shard = shard_in(fingerprint) or {}
    return _Rank(shard["rank"], position, fingerprint, resume_point), shard["ranks"]


def _check_stages(fingerprint: Mapping[str, Any], name: str) -> None:
    """Check that another number of ranks can continue an epoch with these stages."""
    if shard_in(fingerprint) is None:
        raise InvalidArgumentError(
            f"{name}: got a position of a pipeline without ranks; expected .shard(rank, ranks)"
            " in it, after mix (shard(0, 1) for one rank)"
        )
    for stage in fingerprint["stages"]:
        why = stage_class(stage["kind"]).why_inelastic(stage)
        if why is not None:
            raise InvalidArgumentError(
                f"{name}: got a position of a pipeline with `{stage['kind']}`, {why}; expected"
                " stages that can continue with another number of ranks"
            )
        for other in stage.get("others", ()):
            _check_stages(other, name)


def _check_same_run(ranks: Sequence[_Rank]) -> None:
    """Check that positions are of one run: the same pipeline but for the rank, and the same rests.

    Raises:
        InvalidArgumentError: they are not.
    """
    first = ranks[0]
    ours = without_rank(first.fingerprint)
    for one in ranks[1:]:
        found = [
            *differences(without_rank(one.fingerprint), ours, ""),
            *differences(one.resume_point.skip, first.resume_point.skip, "skip"),
        ]
        # A rank forgets the rests of epochs that it has finished: compare only later ones.
        for epoch in one.rests().keys() | first.rests().keys():
            if epoch >= max(one.resume_point.epoch, first.resume_point.epoch):
                rests = one.rests().get(epoch), first.rests().get(epoch)
                found += differences(*rests, f"rest.epochs.{epoch}")
        for field, theirs, other in found:
            is_seed = field.endswith(".seed")
            hint = ", or the source has no seed, so that each rank draws one" if is_seed else ""
            raise InvalidArgumentError(
                f"positions: got {field} {theirs} of rank {one.rank} and {other} of rank 0;"
                f" expected the same: these are positions of different runs{hint}"
            )


def _check_lockstep(ranks: Sequence[_Rank]) -> None:
    """Check that all ranks have taken equally many steps."""
    for one in ranks[1:]:
        if one.total != ranks[0].total:
            raise InvalidArgumentError(
                f"positions: got {one.total} batches of rank {one.rank} and {ranks[0].total} of"
                " rank 0 since the run began; expected equal numbers, from one checkpoint that all"
                " ranks saved at the same step (pass lockstep=False if each rank works at its own"
                " pace)"
            )


def _merged_layouts(ranks: Sequence[_Rank]) -> list[Mapping[str, Any] | None]:
    """The dtypes and shapes of batches, stage by stage, which all new ranks will use.

    Raises:
        InvalidArgumentError: those of the earlier ranks do not fit together.
    """
    stages = zip_longest(*(one.resume_point.layouts for one in ranks))
    return [_common_layout(f"layouts.{at}", layouts) for at, layouts in enumerate(stages)]


def _common_layout(
    field: str, layouts: Sequence[Mapping[str, Any] | None]
) -> Mapping[str, Any] | None:
    """One layout that can hold the examples of all ranks; ``None`` if no rank has fixed one."""
    agreed: Mapping[str, Any] | None = None
    # `agreed` can hold the examples of all ranks before, so that each rank is compared once.
    for rank, layout in enumerate(layouts):
        if agreed is None or layout is None or layout == agreed:
            agreed = agreed or layout
            continue
        joined = Layout.of_plain(agreed).joined(Layout.of_plain(layout))
        if joined is None:
            raise InvalidArgumentError(
                f"positions: got {field} {layout} of rank {rank} and {agreed} of the ranks before"
                " it, from the first example of each; expected the same dtypes and shapes, or a"
                " dtype that can hold all values: let your function return the same dtypes and"
                " shapes for all items"
            )
        agreed = joined.plain()
    return agreed


def _merged(ranks: Sequence[_Rank], epoch: int) -> State | None:
    """Return what is left of an epoch; ``None`` if no rank has begun it."""
    # If these ranks have themselves resumed from a merged position, they were dealt only a rest of
    # this epoch. All of them have the same one, so any will do.
    before = next((one.rests()[epoch] for one in ranks if epoch in one.rests()), None)
    earlier = before["sources"] if before else [None] * max(len(one.ledgers) for one in ranks)
    drops = (shard_in(ranks[0].fingerprint) or {})["uneven"] == "drop"
    sources = [
        _left_of_source([_in_files(one.left(epoch, at)) for one in ranks], rest, drops=drops)
        for at, rest in enumerate(earlier)
    ]
    # In lockstep all counts are equal. Otherwise use the largest: batches are numbered from there.
    counts = [one.resume_point.batches for one in ranks if one.resume_point.epoch == epoch]
    batches = max(counts, default=before["batches"] if before else 0)
    # `batches` counts, too: all items may be left although some of their examples were delivered.
    if before is None and not batches and all(one["upto"] == 0 for one in sources):
        return None
    return {"batches": batches, "sources": sources}


def _in_files(left: State) -> State:
    """Return what a rank has left in files, if it reads whole files; otherwise as it is.

    What is left is then dealt out in the same way, with files in the place of items, and with
    records as their parts.
    """
    if "files" not in left:
        return left  # items; or an epoch that has ended or has not begun, in files already
    count = left["file_count"] if "count" in left else None
    begun, upto, cuts = left_in_files(
        segments_in(left),
        unpacked(left["missing"]),
        left["upto"],
        cut_of(left.get("cut", ())),
        count,
    )
    state: State = {"missing": packed(begun), "upto": upto, "cut": cut_state(cuts)}
    return state if count is None else {**state, "count": count}


def _left_of_source(lefts: Sequence[State], before: State | None, *, drops: bool) -> State:
    """What is left of an epoch of one source, by places in the whole epoch.

    Args:
        lefts: what each rank has left of its items, by its own numbers.
        before: what was dealt out to these ranks; ``None`` if it was the whole epoch.
        drops: whether ranks drop the items of an incomplete last round.
    """
    dealt = WHOLE if before is None else rest_of(before)
    taken = max(left["upto"] for left in lefts)  # how many rounds any rank has begun
    # First the rounds that any rank has begun: the items there that their ranks have not delivered.
    # A rank that is behind has all its items of the later rounds left. `place_of` is None behind
    # the end of a rest, where copies have padded the last round.
    places = {
        place
        for rank, left in enumerate(lefts)
        for number in _numbers_left(left, taken)
        if (place := dealt.place_of(number * len(lefts) + rank)) is not None
    }
    # `upto` is the place behind which everything is left; None if no more items follow. An
    # incomplete last round, which these ranks would drop, is dealt out again to the new ranks. But
    # if all ranks have delivered everything, the epoch is over and the round stays dropped.
    if all("count" in left for left in lefts) and not (drops and places):
        upto = None
    else:
        behind = taken * len(lefts)
        places.update(dealt.missing[behind:])
        upto = dealt.place_of(max(behind, len(dealt.missing)))
    while upto is not None and upto - 1 in places:  # keep the list short
        upto -= 1
        places.remove(upto)
    left: State = {"missing": packed(sorted(places)), "upto": upto}
    # A source without random access has to be read from the earliest place that any rank needs.
    begin = min(_starting_points(lefts, dealt), default=None, key=lambda begin: begin[0])
    if begin is not None:
        left |= {"start": begin[0], "start_place": begin[1]}
    # Delivered parts matter only for items that are left: the others are done as a whole.
    cuts = {
        place: cut
        for place, cut in _cuts(lefts, dealt, cut_of((before or {}).get("cut", ()))).items()
        if place in places or (upto is not None and place >= upto)
    }
    return {**left, "cut": cut_state(cuts)} if cuts else left


def _numbers_left(left: State, taken: int) -> Iterator[int]:
    """Yield the numbers of a rank's remaining items, in rounds that any rank has begun."""
    yield from unpacked(left["missing"])
    if "count" not in left:
        yield from range(left["upto"], taken)


def _starting_points(lefts: Sequence[State], dealt: RemainingItems) -> Iterator[tuple[int, Any]]:
    """Yield where each rank could begin to read a source that has no random access."""
    for left in lefts:
        if "start" in left:
            number, place = start_of(left)
            if dealt is WHOLE:  # the rank counts its own items, the result those of all ranks
                yield number * len(lefts), place
            else:  # within a rest, the place itself contains the count in the whole epoch
                yield dealt.begin if place is None else (place[0], place[1])
        elif left["missing"] or "count" not in left:
            yield dealt.begin


def _cuts(lefts: Sequence[State], dealt: RemainingItems, before: DeliveredParts) -> DeliveredParts:
    """Return the parts of items that were delivered, by the item's place in the whole epoch."""
    cuts = before
    # An item of a rest may have been delivered in part by several numbers of ranks, one after the
    # other. So the cuts of all of them are joined.
    for rank, left in enumerate(lefts):
        for number, cut in cut_of(left.get("cut", ())).items():
            place = dealt.place_of(number * len(lefts) + rank)
            if place is not None:
                cuts = _joined(cuts, {place: cut})
    return cuts


def _joined(one: DeliveredParts, other: DeliveredParts) -> DeliveredParts:
    """Return the parts that were delivered in either, or in both."""
    joined = dict(one)
    for part, cut in other.items():
        ours = joined.get(part, {})
        # None stands for the whole part, so it absorbs any smaller cut.
        joined[part] = None if ours is None or cut is None else _joined(ours, cut)
    return joined
