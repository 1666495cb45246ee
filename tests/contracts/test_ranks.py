"""Ranks together have each example once; and their merged positions resume with another number of
ranks, or are refused with the reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import merge_positions
from tests.contracts.programs import Program, asked
from tests.kit.exact import plain_form
from tests.kit.resuming import Batches, How, run, through_json

EPOCHS = 2


def examples(program: Program, runs: list[Batches]) -> Counter[Any]:
    """How often each example came in each epoch."""
    return Counter(
        (epoch, json.dumps(plain_form(part)))
        for batches in runs
        for epoch, value in batches
        for part in program.parts(value.value)
    )


def ranks_of(program: Program, folder: Path, ranks: int) -> list[Any]:
    return [
        program.pipeline(How(2), folder).shard(rank, ranks, uneven="allow") for rank in range(ranks)
    ]


def why_inelastic(pipeline: Any) -> tuple[str, str] | None:
    """The stage that other ranks cannot continue, and its reason; ``None`` if they can."""
    for stage in pipeline.stages:
        reason = stage.why_inelastic(stage.fingerprint())
        if reason is not None:
            return stage.name, reason
    return None


@asked("ranks", first=True)
def test_ranks_share_the_examples(program: Program, folder: Path) -> None:
    whole = program.pipeline(How(2), folder)
    no_ranks = whole.source._no_ranks
    if no_ranks is not None:
        with pytest.raises(InvalidArgumentError, match=re.escape(no_ranks)):
            ranks_of(program, folder, 2)[0].epochs(EPOCHS)
        return
    if why_inelastic(whole) is not None:
        return  # what it has on each rank depends on how many there are
    found = [run(one, EPOCHS)[0] for one in ranks_of(program, folder, 2)]
    assert examples(program, found) == examples(program, [run(whole, EPOCHS)[0]]), (
        f"{program.kind} is elastic, as its why_inelastic says, but two ranks together have other"
        " examples than one: it counts or pairs the rows of a rank, so it has a reason"
    )


@asked("ranks", first=True)
def test_another_number_of_ranks_continues_or_is_refused(program: Program, folder: Path) -> None:
    whole = program.pipeline(How(2), folder)
    if whole.source._no_ranks is not None:
        return
    before = [run(one, EPOCHS, 1 + rank) for rank, one in enumerate(ranks_of(program, folder, 2))]
    states = [state for _, state in before]
    reason = why_inelastic(whole)
    if reason is not None:
        with pytest.raises(InvalidArgumentError, match=re.escape(f"`{reason[0]}`, {reason[1]}")):
            merge_positions(states, lockstep=False)
        return
    try:
        merged = through_json(merge_positions(states, lockstep=False))
    except InvalidArgumentError as refusal:
        assert re.search(r"position that does not say .*\(.*(stage|source)", str(refusal)), (
            f"{program.kind}: merged positions are refused without its reason: {refusal}"
        )
        return
    after = [run(one, EPOCHS, None, merged)[0] for one in ranks_of(program, folder, 3)]
    found = examples(program, [*(batches for batches, _ in before), *after])
    assert found == examples(program, [run(whole, EPOCHS)[0]]), (
        f"{program.kind} is elastic, as its why_inelastic says, but three ranks that continue what"
        " two began lose or repeat examples"
    )
