"""What values, functions, modules and items are, for runs that compare them.

Caches compare them, and positions.
"""

from __future__ import annotations
