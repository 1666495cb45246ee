"""The suite's tests of `Latest`, on handles of one in another process.

Left out is what looks for the very object that caused its end, and what is of one process.
"""

from __future__ import annotations

from typing import Any

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.owners import Owner
from tests.latest import test_latest
from tests.latest.test_latest import (
    pool,
    run,
    test_a_cancelled_wait_changes_nothing,
    test_limits_of_threads,
    test_random_readers_see_later_and_later_versions,
    test_reading_keeps_the_value_and_skips_old_ones,
    test_tasks_wait_for_a_newer_version,
    test_the_last_value_is_read_after_the_end,
    test_the_stop_of_a_coordinator_wakes_its_workers,
    test_the_stop_wakes_a_worker_that_was_registered_while_it_waited,
)

__all__ = (
    "pool",
    "run",
    "test_a_cancelled_wait_changes_nothing",
    "test_limits_of_threads",
    "test_random_readers_see_later_and_later_versions",
    "test_reading_keeps_the_value_and_skips_old_ones",
    "test_tasks_wait_for_a_newer_version",
    "test_the_last_value_is_read_after_the_end",
    "test_the_stop_of_a_coordinator_wakes_its_workers",
    "test_the_stop_wakes_a_worker_that_was_registered_while_it_waited",
)

pytestmark = pytest.mark.slow(but="test_reading_keeps")


class MadeElsewhere:
    """In place of the class `Latest`: it makes one in another process, and returns a handle."""

    def __init__(self, owner: Owner, face: str) -> None:
        self._owner = owner
        self._face = face

    def __getitem__(self, kind: Any) -> Any:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(self._owner.make("Latest", *arguments, **options), self._face)


@pytest.fixture(autouse=True)
def _latest_elsewhere(monkeypatch: pytest.MonkeyPatch, owner: Owner) -> None:
    for module, face in ((aioqueue, "aio"), (sync, "sync")):
        monkeypatch.setattr(module, "Latest", MadeElsewhere(owner, face))
    monkeypatch.setattr(test_latest, "Latest", MadeElsewhere(owner, "aio"), raising=False)
