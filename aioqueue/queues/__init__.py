"""The four queues, each with an async face and a blocking face."""

from __future__ import annotations

from aioqueue.locks import COMPILED
from aioqueue.queues import core  # noqa: F401  # imports every module that may be compiled

if COMPILED:
    from aioqueue.tracebacks import show_sources

    show_sources()
