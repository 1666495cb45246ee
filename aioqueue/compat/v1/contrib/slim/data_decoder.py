"""``slim.data_decoder``: what decoders of records have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioqueue.compat.v1.absent import names_of

__all__ = ("DataDecoder",)


class DataDecoder:
    """Base class of decoders: what makes items, such as a picture, of a record."""

    def decode(self, data: Any, items: Sequence[str] | None = None) -> list[Any]:
        """The tensors of some items.

        Args:
            data: a record.
            items: names of items; None for all.
        """
        raise NotImplementedError

    def list_items(self) -> list[str]:
        """The names of the items that it can make."""
        raise NotImplementedError


__getattr__ = names_of(__name__)
