"""``slim.dataset``: where a data set is, and how its records are read and decoded."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1.absent import names_of

__all__ = ("Dataset",)


class Dataset:
    """A data set.

    Args:
        data_sources: names of files, or patterns.
        reader: the class of what reads them.
        decoder: a ``DataDecoder``.
        num_samples: how many examples there are.
        items_to_descriptions: what each item is, by its name.
        kwargs: further attributes.
    """

    def __init__(
        self,
        data_sources: Any,
        reader: Any,
        decoder: Any,
        num_samples: int,
        items_to_descriptions: Any,
        **kwargs: Any,
    ) -> None:
        self.data_sources = data_sources
        self.reader = reader
        self.decoder = decoder
        self.num_samples = num_samples
        self.items_to_descriptions = items_to_descriptions
        self.__dict__.update(kwargs)


__getattr__ = names_of(__name__)
