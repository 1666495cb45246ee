"""The four queues, each with an async face and a blocking face."""

from __future__ import annotations

from aioqueue.system.locks import COMPILED

if COMPILED:
    from aioqueue.base.tracebacks import show_sources

    show_sources()
