"""The tests of `RolloutQueue` with a trainer that has a handle, as in another process.

Left out is what needs functions that cannot be pickled, and what counts the failures of a block:
the trainer of another process gets a failure as a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aioqueue.rl import sharing
from tests.kit.sharing import sharing_ended
from tests.kit.worlds import World
from tests.rl import kit, test_queue, test_queue_failures


@pytest.fixture(autouse=True)
def _handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make = kit.Trainer.__init__

    def make_with_handle(self: kit.Trainer, world: World, rollouts: object) -> None:
        make(self, world, kit.handle_of(rollouts))  # type: ignore[arg-type]

    monkeypatch.setattr(kit.Trainer, "__init__", make_with_handle)
    # Else what comes back to this process would be the thing itself.
    monkeypatch.setattr(sharing, "running_server", lambda: None)
    with sharing_ended():
        yield


class TestBatches(test_queue.TestBatches): ...


class TestDone(test_queue.TestDone): ...


class TestPublishing(test_queue.TestPublishing): ...


class TestEvaluation(test_queue.TestEvaluation):
    test_it_has_a_function_of_its_own = None  # type: ignore[assignment]


_OTHERS = test_queue_failures.TestOtherFunctions


class TestFailures:
    test_the_trainer_gets_the_failure = (
        test_queue_failures.TestRollouts.test_the_trainer_gets_the_failure
    )
    test_what_fails_for_good_can_be_dropped = (
        test_queue_failures.TestRollouts.test_what_fails_for_good_can_be_dropped
    )
    test_the_publication_fails = _OTHERS.test_the_publication_of_a_trainer_fails_without_the_run
