"""What a data loader is made of is known from its dataset: a `Dataset`, a list or another one.

The check of types is the test: nothing here is annotated that a user would not annotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from aioqueue.torch import DataLoader


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    """With its base class."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2), index


class Numbers(IterableDataset[int]):
    """An iterable one."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Words:
    """Without a base class."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        return "word"


def test_its_items_are_inferred() -> None:
    pairs = DataLoader(Pairs(), 2, shuffle=True)
    assert_type(pairs, DataLoader[tuple[torch.Tensor, int]])
    numbers = DataLoader(Numbers(), 2)
    subset = DataLoader(Subset(Pairs(), [1, 2]), 2)
    assert_type(DataLoader(Words(), 2), DataLoader[str])
    assert_type(DataLoader({0: b"a", 1: b"b"}), DataLoader[bytes])
    assert_type(DataLoader(range(4), 2), DataLoader[int])
    assert_type(DataLoader([1.5, 2.5], 2), DataLoader[float])
    anything: Any = Words()
    assert len(DataLoader(anything, 2)) == 1
    assert len(DataLoader(torch.zeros(4, 2), 2)) == 2

    assert [batch.tolist() for batch in numbers] == [[0, 1], [2, 3]]
    for batch in [*pairs, *subset]:
        features, labels = batch
        assert len(features) == len(labels) == 2
