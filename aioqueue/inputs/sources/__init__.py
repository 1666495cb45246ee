"""Where items come from, and in which order they are taken."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
