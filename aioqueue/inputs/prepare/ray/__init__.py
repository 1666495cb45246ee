"""Preparing on a Ray cluster: the actors there, and who talks to them here."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
