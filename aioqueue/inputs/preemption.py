"""Preemption: being told to stop soon, and stopping between two batches.

A flag is set, and nothing else is done in a signal handler: the training loop looks at it between
two batches, saves what it has, and leaves. The data need none of the time that is left, since the
position of a pipeline is always that of the last batch.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from os import PathLike
from types import FrameType
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.checks import checked_seconds

__all__ = ("Preemption",)

_log: Final = logging.getLogger("aioqueue")

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)

_POLL: Final = 5.0


class Preemption:
    """A flag that is set when this process is to end soon. A context manager, of both kinds.

    It is true from then on, and saves nothing by itself::

        with Preemption() as preempted:
            for batch in epoch:
                train(batch)
                if preempted:
                    save()
                    break

    Signals are handled in the main thread, so it must be entered there if there are any. Handlers
    that were there before are called too, and are there again when it is left; a default action,
    which would end the process, is not carried out meanwhile.

    Args:
        signals: which ones set it; by default SIGTERM and, where there is one, SIGUSR1, which SLURM
            sends with ``--signal=USR1@120``.
        file: a file whose existence sets it.
        notice: a function whose true result sets it: one that asks a cloud, say. It is called by a
            thread of its own, and may block; what it raises is logged, and it is asked again.
        every: seconds between two looks at the file and at the notice, > 0.
        grace: seconds that are left then, for `deadline`; ``None`` if that is not known.
        callback: called once when it is set: in the main thread, inside of a signal handler, or in
            the thread that looks; so it must neither block nor raise.

    Raises:
        InvalidArgumentError: an argument is wrong.
    """

    def __init__(
        self,
        signals: Iterable[int] = _SIGNALS,
        *,
        file: str | PathLike[str] | None = None,
        notice: Callable[[], Any] | None = None,
        every: float = _POLL,
        grace: float | None = 30.0,
        callback: Callable[[], object] | None = None,
    ) -> None:
        try:
            self._signals = tuple(signal.Signals(number) for number in signals)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"signals: got {signals!r}; expected signals, such as signal.SIGTERM"
            ) from error
        for name, one in (("notice", notice), ("callback", callback)):
            if one is not None and not callable(one):
                raise InvalidArgumentError(f"{name}: got {one!r}; expected a function or None")
        self._file = file
        self._notice = notice
        self._every = checked_seconds(every, "every")
        self._grace = None if grace is None else checked_seconds(grace, "grace")
        self._callback = callback
        self._earlier: dict[int, Any] = {}
        self._reason: str | None = None
        self._deadline: float | None = None
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Whether this process is to end soon."""
        return self._reason is not None

    def __repr__(self) -> str:
        state = "not preempted" if self._reason is None else f"preempted by {self._reason}"
        return f"<{type(self).__module__}.{type(self).__name__} {state}>"

    @property
    def reason(self) -> str | None:
        """What has set it: the name of a signal, ``"file"``, ``"notice"``, ``"request"``."""
        return self._reason

    @property
    def deadline(self) -> float | None:
        """When the process may be killed, by `time.monotonic`; ``None`` if that is not known."""
        return self._deadline

    def request(self, reason: str = "request") -> None:
        """Set it by hand. From any thread; only the first time counts."""
        if self._reason is not None:
            return
        if self._grace is not None:
            self._deadline = time.monotonic() + self._grace
        self._reason = reason
        if self._callback is not None:
            self._callback()

    def __enter__(self) -> Preemption:
        try:
            for number in self._signals:
                self._earlier[number] = signal.signal(number, self._on_signal)
        except ValueError as error:
            raise RuntimeError(
                "signals can be handled by the main thread only: enter it there, or pass signals=()"
            ) from error
        if self._file is not None or self._notice is not None:
            self._watcher = threading.Thread(
                target=self._watch, name="aioqueue-preemption", daemon=True
            )
            self._watcher.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._earlier:
            number, earlier = self._earlier.popitem()
            # None: a handler that was not set by Python, and so cannot be set again.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
        self._is_over.set()

    async def __aenter__(self) -> Preemption:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
        earlier = self._earlier.get(number)
        if callable(earlier):
            earlier(number, frame)

    def _watch(self) -> None:
        while True:
            reason = self._noticed()
            if reason is not None:
                self.request(reason)
                return
            if self._is_over.wait(self._every):
                return

    def _noticed(self) -> str | None:
        if self._file is not None and os.path.exists(self._file):
            return "file"
        try:
            return "notice" if self._notice is not None and self._notice() else None
        except Exception:
            _log.warning("a notice of a preemption could not be asked for", exc_info=True)
            return None
