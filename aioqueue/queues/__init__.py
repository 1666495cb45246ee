"""The four queues, in two faces: `aio` is awaited, `blocking` is for threads."""

from __future__ import annotations

from aioqueue.queues import aio, blocking
from aioqueue.queues.core import QueueCore, QueueFace

__all__ = ("QueueCore", "QueueFace", "aio", "blocking")
