"""A value that one side publishes and many read, without a queue of old ones: see `Latest`."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
