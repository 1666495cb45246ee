"""An epoch has as many values as its length says, or its length is unknown."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.programs import Program, asked
from tests.kit.resuming import How


@asked("lengths", first=True)
def test_each_epoch_has_its_length(program: Program, folder: Path) -> None:
    with program.pipeline(How(2), folder).epochs(2) as epochs:
        for epoch in epochs:
            try:
                length = len(epoch)
            except TypeError:
                return  # it depends on the data
            count = sum(1 for _ in epoch)
            assert count == length, (
                f"{program.kind}: epoch {epoch.number} has {count} values, and its `length` says"
                f" {length}"
            )


@asked("lengths", first=True)
def test_what_is_left_of_an_epoch_has_its_length(program: Program, folder: Path) -> None:
    with program.pipeline(How(2), folder).epochs(1) as epochs:
        next(iter(next(epochs)))
        state = epochs.state_dict()
    with program.pipeline(How(2), folder).epochs(1, resume=state) as epochs:
        epoch = next(epochs)
        try:
            length = len(epoch)
        except TypeError:
            return
        assert sum(1 for _ in epoch) == length, f"{program.kind}: its `length` after a resume"
