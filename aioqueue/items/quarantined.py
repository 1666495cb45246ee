"""`Quarantined`: an item that a run has skipped, and why."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, fields
from typing import Any

from aioqueue.base.display_text import without_secrets
from aioqueue.base.public_names import public
from aioqueue.base.tracebacks import shorten, text_of
from aioqueue.items.item import Item


@public("aioqueue.inputs")
@dataclass(frozen=True)
class Quarantined:
    """An item that could not be prepared, or a damaged file.

    Attributes:
        item: the item itself; of a damaged file, its path.
        epoch: the epoch of the source that it belongs to.
        index: its place in that epoch.
        error: the last failure, its class and message.
        traceback: that failure as Python prints it.
        attempts: how often its preparation was tried.
        seed: what the generator of the item is derived from, beside epoch and index.
        offset: of a damaged file, where the damage is, in bytes (decompressed); else ``None``.
    """

    item: Any
    epoch: int
    index: int
    error: str
    traceback: str = field(repr=False)
    attempts: int
    seed: int
    offset: int | None = None

    def __repr__(self) -> str:
        shown = [one.name for one in fields(self) if one.repr]
        text = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return without_secrets(f"{type(self).__name__}({text})")

    @classmethod
    def of(cls, item: Item, error: Exception, attempts: int, seed: int) -> Quarantined:
        """The record of an item and its last failure."""
        shorten(error)
        lines = text_of(error, traceback.format_exception_only).splitlines()
        return cls(
            item.value,
            item.epoch,
            item.index,
            # The first lines may be code.
            without_secrets(next(line for line in lines if not line.startswith(" "))),
            without_secrets(text_of(error)),
            attempts,
            seed,
        )
