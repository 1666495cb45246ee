"""What an operation computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ("WOULD_WAIT", "Kernel")

Kernel = Callable[..., Any]
"""``kernel(step, *values)``; returns nothing, a bare value or a tuple, as the op has outputs."""

WOULD_WAIT: Any = type("WouldWait", (), {"__repr__": lambda self: "WOULD_WAIT"})()
"""What ``attrs["try_now"]`` answers instead of blocking; nothing has happened then."""
