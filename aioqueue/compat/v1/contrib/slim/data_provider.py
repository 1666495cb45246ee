"""``slim.data_provider``: tensors of a data set, by the names of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioqueue.compat.v1.absent import names_of

__all__ = ("DataProvider",)


class DataProvider:
    """The tensors of an example, by the names of its items.

    Args:
        items_to_tensors: them.
        num_samples: how many examples there are.
    """

    def __init__(self, items_to_tensors: Mapping[str, Any], num_samples: int) -> None:
        self._items_to_tensors = dict(items_to_tensors)
        self._num_samples = num_samples

    def get(self, items: Sequence[str]) -> list[Any]:
        """The tensors of some items.

        Raises:
            ValueError: there is no such item.
        """
        unknown = [one for one in items if one not in self._items_to_tensors]
        if unknown:
            raise ValueError(f"Items {unknown} not in {self.list_items()}")
        return [self._items_to_tensors[one] for one in items]

    def list_items(self) -> list[str]:
        """The names of the items."""
        return list(self._items_to_tensors)

    def num_samples(self) -> int:
        """How many examples there are."""
        return self._num_samples


__getattr__ = names_of(__name__)
