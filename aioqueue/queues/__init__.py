"""The four queues, each with an async face and a blocking face."""

from __future__ import annotations

from aioqueue.queues.core import QueueCore, QueueFace

__all__ = ("QueueCore", "QueueFace")
