"""Sessions: how fetches become plans, how plans run, and what a session keeps between runs."""

from __future__ import annotations

__all__ = ()
