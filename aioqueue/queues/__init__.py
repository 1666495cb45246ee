"""The four queues, each with an async face and a blocking face."""

from __future__ import annotations

from aioqueue.locks import COMPILED
from aioqueue.queues.core import QueueCore, QueueFace

__all__ = ("QueueCore", "QueueFace")

if COMPILED:
    from aioqueue.tracebacks import show_sources

    show_sources()
