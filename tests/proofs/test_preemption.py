"""The quick form of `proofs.preemption`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from proofs.preemption import PLACES, SIGNALS, Preempted, preempt

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")


@pytest.mark.slow(but="process-SIGTERM")
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("where", PLACES)
def test_a_signal_to_all_processes_is_for_the_trainer(where: str, name: str) -> None:
    found = preempt(where, getattr(signal, name))
    assert found == Preempted(name, True, 0, True, "", 0, found.seconds)
