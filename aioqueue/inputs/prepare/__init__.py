"""`prepare`: calls a function for every item of a source, on workers."""

from __future__ import annotations
