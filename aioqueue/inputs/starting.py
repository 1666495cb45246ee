"""How worker processes are started: never by fork, which would copy locks that threads hold.

On Linux by multiprocessing's fork server, elsewhere they are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import Any

__all__ = ("StartedProcess",)

if sys.platform == "linux":
    from multiprocessing.context import ForkServerProcess
    from multiprocessing.popen_forkserver import Popen

    class _LockedPopen(Popen):
        """Can be polled by several threads at once.

        The standard one cannot: of two threads that find the exit code ready to be read, one gets
        it, and the other waits for another one for ever. And it is enough that one of them starts
        a process of its own, or asks for `multiprocessing.active_children`: both poll all.
        """

        def __init__(self, process: Any) -> None:
            self._polling = threading.Lock()
            super().__init__(process)

        def poll(self, flag: int = os.WNOHANG) -> int | None:
            with self._polling:
                return super().poll(flag)

    class StartedProcess(ForkServerProcess):
        """A process of the fork server."""

        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802  # so multiprocessing calls it
            return _LockedPopen(process_obj)

else:
    StartedProcess = multiprocessing.get_context("spawn").Process
