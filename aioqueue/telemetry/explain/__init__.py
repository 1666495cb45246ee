"""Why a program waits: the wait graph, its root causes, and call stacks."""

from __future__ import annotations
