"""Where items come from: sequences, iterables, mixtures, and sources of one's own."""

from __future__ import annotations
