"""How hard the proof tries: as fits in every run of the suite, or as many times as asked for.

::

    AIOQUEUE_PROOF=300 python -m pytest --run-slow --timeout 0 -s tests/proofs

plays three hundred times as many programs, records as many times more histories, and forces longer
schedules, each time other ones, and prints how many there were.
"""

from __future__ import annotations

import os

__all__ = ("EFFORT", "IS_LONG")

EFFORT = int(os.environ.get("AIOQUEUE_PROOF", "1"))
"""A factor on the number of everything."""

IS_LONG = EFFORT > 1
"""Whether chance may choose other cases than those of the suite, which are always the same."""
