"""Sinks: the formats of the files that `Pipeline.write` writes, a format a file."""

from __future__ import annotations
