"""What all of the inputs stand on: items, their order, their positions, and records of them."""

from __future__ import annotations
