"""Stopping together, joining and reporting; and keeping workers filling a queue. In two faces."""

from __future__ import annotations

__all__ = ()
