"""Threads for operations that block at the same time, kept and used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ("Workers",)

Job = Callable[[], None]


class Workers:
    """As many threads as there are jobs at once, none before the first one.

    They are daemons: a session that a script forgot to close does not keep the process alive.
    """

    def __init__(self) -> None:
        # Re-entrant: a session may be collected, and closed, in a thread that holds it.
        self._lock = threading.RLock()
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False

    def start(self, job: Job) -> None:
        """Run `job`, which raises nothing, in an idle thread or a new one."""
        with self._lock:
            # Those that became idle after the end have ended as well.
            inbox = self._idle.pop() if self._idle and not self._closed else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(
                target=self._work, args=(inbox,), name="aioqueue-session-worker", daemon=True
            ).start()
        inbox.put(job)

    def _work(self, inbox: SimpleQueue[Job | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # what it refers to must not live until the next one comes
            with self._lock:
                self._idle.append(inbox)
                if self._closed:
                    return

    def close(self) -> None:
        """Let the threads end: idle ones now, the others after their job."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)
