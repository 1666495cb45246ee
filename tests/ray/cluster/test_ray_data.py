"""Datasets of Ray as sources: by reference, whole or split; without positions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import inputs
from tests.ray.marks import MARKS

pytest.importorskip("pandas", reason="pip install '.[ray-data]'")
pytest.importorskip("pyarrow", reason="pip install '.[ray-data]'")

pytestmark = [*MARKS, pytest.mark.long, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def dataset(cluster: Any) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data.range(96, override_num_blocks=4)


def test_rows(dataset: Any) -> None:
    source = inputs.ray_dataset(dataset, seed=1)
    found = [n for (n,) in source.prepare(lambda row: row["id"]).batch(1)]
    assert sorted(found) == list(range(96))
    assert sorted(row["id"] for row in source) == list(range(96))  # begins anew


@pytest.mark.parametrize("copy", [False, True])
def test_batches(dataset: Any, copy: bool) -> None:
    batches = list(inputs.ray_dataset(dataset, batch_size=40, copy=copy))
    assert sorted(np.concatenate([batch["id"] for batch in batches])) == list(range(96))
    assert batches[0]["id"].flags.writeable or not copy


def test_ranks_share_an_epoch(dataset: Any) -> None:
    splits = dataset.streaming_split(2, equal=True)
    found: list[list[int]] = [[], []]

    def train(rank: int) -> None:
        source = inputs.ray_dataset(splits[rank], batch_size=8)
        for batch in source.prepare(lambda batch: batch["id"]).batch(1):
            found[rank] += batch[0].tolist()

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert len(found[0]) == len(found[1]) == 48
    assert sorted(found[0] + found[1]) == list(range(96))


def test_it_has_no_position(dataset: Any) -> None:
    epochs = inputs.ray_dataset(dataset).batch(8).epochs(1)
    with pytest.raises(aioqueue.InvalidArgumentError, match="which has no positions"):
        epochs.state_dict()


def test_wrong_arguments(cluster: Any) -> None:
    with pytest.raises(aioqueue.InvalidArgumentError, match="dataset: got"):
        inputs.ray_dataset([1, 2])
    with pytest.raises(aioqueue.InvalidArgumentError, match="batch_size: got 0"):
        inputs.ray_dataset([1, 2], batch_size=0)
