"""Batching calls: many callers await one result each, and a function sees them in batches.

The core decides which calls go into which batch and what becomes of each; it is the same for both
faces. The workers call the function, as tasks or threads; the faces only wait.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
