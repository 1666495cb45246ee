"""The four queues, each with an async face and a blocking face."""

from __future__ import annotations

from aioqueue.queues import core  # noqa: F401  # imports every module that may be compiled
from aioqueue.system.locks import COMPILED

if COMPILED:
    from aioqueue.base.tracebacks import show_sources

    show_sources()
