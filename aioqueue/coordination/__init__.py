"""Stopping together, joining and reporting; and keeping workers filling a queue. In two faces."""

from __future__ import annotations

from aioqueue.coordination import aio, blocking

__all__ = ("aio", "blocking")
