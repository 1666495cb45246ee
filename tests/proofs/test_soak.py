"""The soak, for a moment: that it runs, and that it would notice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tqdm", reason="progress is shown by tqdm, which is not installed")

from proofs import soak


@pytest.mark.slow
def test_it_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seconds", "2.5", "--seed", "11"]) == 0
    out = capsys.readouterr().out
    assert "each came out exactly once" in out
    assert "calls cancelled or timed out" in out


def lose_one(ids: Any) -> Any:
    return ids[1:]


def repeat_one(ids: Any) -> Any:
    return np.append(ids, ids[:1])


def swap_one_for_another(ids: Any) -> Any:
    return np.append(ids[1:], ids[:1] + 1)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("damage", [lose_one, repeat_one, swap_one_for_another])
def test_it_would_notice(
    damage: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One single batch is not what it was."""
    intact = soak.Round.ids
    done: list[bool] = []

    def ids(self: soak.Round, batch: Any) -> Any:
        got = intact(self, batch)
        if not done and len(got):
            done.append(True)
            return damage(got)
        return got

    monkeypatch.setattr(soak.Round, "ids", ids)
    assert soak.main(["--seconds", "60", "--seed", "11"]) == 1
    assert "FAILED in round 11" in capsys.readouterr().out


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("worker", ["consume", "produce", "consume_async", "produce_async"])
def test_a_failed_worker_would_be_reported(
    worker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What such a worker moved last is not mistaken for lost or repeated elements."""
    intact = soak.Round.batch if worker.startswith("produce") else soak.Round.ids
    of: list[str] = []

    def failing(self: soak.Round, *arguments: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        if caller == worker and not of:
            of.append(caller)
            raise OSError("it fell over")
        return intact(self, *arguments)

    monkeypatch.setattr(soak.Round, intact.__name__, failing)
    assert soak.main(["--seconds", "60", "--seed", "11"]) == 1
    reported = capsys.readouterr().out
    assert "FAILED in round" in reported
    assert "a worker failed" in reported
    assert "OSError: it fell over" in reported
