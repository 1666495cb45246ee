"""A loader can be asked: what it has done, what limits it, what it has skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from aioqueue import InvalidArgumentError
from aioqueue.inputs import read_quarantine
from aioqueue.torch import DataLoader
from tests.kit.processing import start_the_forkserver

LENGTH = 24


class Damaged(Dataset[Any]):
    """Every seventh sample fails, and so do all from 16 to 19."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index % 7 == 3 or 16 <= index < 20:
            raise ValueError(f"sample {index} is damaged")
        return torch.full((2,), float(index))


class DamagedAtOnce(Damaged):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(LENGTH))


BAD = [3, 10, 16, 17, 18, 19]
GOOD = [float(number) for number in range(LENGTH) if number not in BAD]

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 3, "in_order": False},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 1, "where": "process"},
]


@pytest.fixture(params=WORKERS, ids=str)
def workers(request: pytest.FixtureRequest, few_processes: None) -> dict[str, Any]:
    if request.param.get("where") == "process":
        start_the_forkserver()
    return dict(request.param)


def numbers_in(batches: Any) -> list[float]:
    return sorted(float(row[0]) for batch in batches for row in batch)


class TestSkipping:
    @pytest.mark.parametrize("dataset", [Damaged, DamagedAtOnce])
    def test_the_others_come(self, workers: dict[str, Any], dataset: Any) -> None:
        loader = DataLoader(dataset(), 4, on_error="skip", **workers)
        for epoch in range(2):
            batches = list(loader)
            assert len(batches) == 5, "one of six was empty"
            assert numbers_in(batches) == GOOD
            found = [one for one in loader.quarantine if one.epoch == epoch]
            assert sorted(one.item for one in found) == BAD
        assert found[0].error.startswith("ValueError: sample ")
        counts = loader.statistics()
        assert (counts.epochs, counts.batches, counts.skipped) == (2, 10, 12)
        assert (counts.waiting, counts.in_progress) == (0, 0)

    def test_single_samples(self, workers: dict[str, Any]) -> None:
        loader = DataLoader(Damaged(), None, on_error="skip", **workers)
        assert sorted(float(one[0]) for one in loader) == GOOD

    @pytest.mark.parametrize("stop", range(6))
    def test_a_resumed_loader_skips_none_twice(self, workers: dict[str, Any], stop: int) -> None:
        loader = DataLoader(Damaged(), 4, on_error="skip", **workers)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(min(stop, 5))]
        state = json.loads(json.dumps(loader.state_dict()))
        before = [one.item for one in loader.quarantine]
        iterator.close()
        again = DataLoader(Damaged(), 4, on_error="skip", **workers)
        again.load_state_dict(state)
        rest = list(again)
        assert numbers_in(first + rest) == GOOD
        assert sorted(before + [one.item for one in again.quarantine]) == BAD

    def test_a_file_has_them(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        loader = DataLoader(Damaged(), 4, num_workers=2, on_error="skip", quarantine=path)
        list(loader)
        assert sorted(read_quarantine(path)) == BAD
        assert sorted(one.item for one in loader.quarantine) == BAD

    def test_too_many_are_a_failure(self, workers: dict[str, Any]) -> None:
        loader = DataLoader(Damaged(), 4, on_error="skip", max_failures=2, **workers)
        with pytest.raises(RuntimeError, match="items failed, and max_failures allows 2"):
            list(loader)

    def test_without_it_a_failure_is_raised(self) -> None:
        with pytest.raises(ValueError, match="sample 3 is damaged"):
            list(DataLoader(Damaged(), 4, num_workers=2))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"on_error": "retry"}, "on_error: got 'retry'"),
            ({"max_failures": 3}, "max_failures: given with on_error='stop'"),
            ({"quarantine": "bad.jsonl"}, "quarantine: given with on_error='stop'"),
            ({"on_error": "skip", "max_failures": -1}, "max_failures: got -1"),
            ({"on_error": "skip", "quarantine": "/no/such/file"}, "quarantine: got '/no/such"),
            ({"dataset": Stream(), "on_error": "skip"}, "on_error: got 'skip' for an iterable"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"^{message}"):
            DataLoader(**{"dataset": Damaged(), "batch_size": 4, **options})


class TestMonitor:
    def test_the_workers_are_one_stage(self, workers: dict[str, Any]) -> None:
        count, where = workers["num_workers"], workers.get("where", "thread")
        loader = DataLoader(Damaged(), 4, on_error="skip", **workers)
        with loader.monitor() as monitor:
            for epoch in range(2):
                for number, _ in enumerate(loader, 1):
                    now = monitor.snapshot()
                    assert now.steps is not None
                    assert now.steps.steps == 5 * epoch + number
                    if not count:
                        (function,) = now.functions
                        assert function.name == "Damaged"
                        continue
                    (stage,) = now.stages
                    assert (stage.name, stage.where) == ("Damaged", where)
                    assert len(stage.workers) <= count
                    assert stage.into == "batches"
                    assert [queue.name for queue in now.queues] == ["batches"]
            final = monitor.snapshot()
            if count:
                assert final.stages[0].delivered == 12
        assert str(monitor.verdict())

    def test_it_sees_epochs_that_began_before(self) -> None:
        loader = DataLoader(Damaged(), 4, num_workers=2, on_error="skip")
        list(loader)
        with loader.monitor() as monitor:
            list(loader)
        steps = monitor.snapshot().steps
        assert steps is not None
        assert steps.steps == 5

    def test_without_it_nothing_is_measured(self) -> None:
        loader = DataLoader(Damaged(), 4, num_workers=2, on_error="skip")
        list(loader)
        assert loader._record.watch.steps is None

    def test_statistics_and_explanation_within_an_epoch(self) -> None:
        loader = DataLoader(Damaged(), 4, num_workers=2, on_error="skip")
        assert loader.statistics().epochs == 0
        iterator = iter(loader)
        next(iterator)
        counts = loader.statistics()
        assert (counts.epochs, counts.batches, counts.workers) == (1, 1, 2)
        assert counts.waiting + counts.in_progress == 4
        assert str(loader.explain()).startswith("aioqueue: why process ")
        iterator.close()
        assert loader.statistics().workers == 0
