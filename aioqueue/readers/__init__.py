"""Readers: sources that yield the contents of files."""

from __future__ import annotations
