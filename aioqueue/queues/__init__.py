"""The four queues, each in two faces: one is awaited, the other is for threads."""

from __future__ import annotations

from aioqueue.queues.core import QueueCore, QueueFace

__all__ = ("QueueCore", "QueueFace")
