"""Worker processes: how one is started and ended, spoken to, and what it shares with its program.

What a process does, and what its death means, is the affair of those who have it: `prepare`, and
batchers.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
