"""The suite's tests of `Latest`, on handles of one in another process.

Left out is what looks for the very object that caused its end, and what is of one process.
"""

from __future__ import annotations

import pytest

import aioqueue
from aioqueue import sync
from tests.kit.owners import MadeElsewhere, Owner
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


@pytest.fixture(autouse=True)
def _latest_elsewhere(monkeypatch: pytest.MonkeyPatch, owner: Owner) -> None:
    for module, face in ((aioqueue, "aio"), (sync, "sync")):
        monkeypatch.setattr(module, "Latest", MadeElsewhere(owner, "Latest", face))
    monkeypatch.setattr(test_latest, "Latest", MadeElsewhere(owner, "Latest", "aio"), raising=False)
