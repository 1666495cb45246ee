"""Writes the scalars of a run to TensorBoard, or to any object with ``add_scalar``."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from aioqueue.base.arguments import checked_count
from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.export.numbering import LOCK, Exported, with_number, without_replaced
from aioqueue.telemetry.verdict.monitored_run import MonitoredRun

_log: Final = logging.getLogger("aioqueue")


class ScalarWriter(Protocol):
    """Accepts scalars: a ``SummaryWriter`` of PyTorch or tensorboardX, or a similar object."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any:
        """Record the value of a step."""


class ScalarSender:
    """Writes the `scalars` of a run every few training steps.

    Beside another open monitor of the same writer, its tags begin with ``data-2``, ``data-3``...

    Args:
        watched: the run, a monitor.
        writer: an object with ``add_scalar(tag, value, step)``.
        every: write once per this many steps, >= 1.

    Raises:
        InvalidArgumentError: `writer` has no ``add_scalar``, or `every` is out of range.
    """

    def __init__(self, watched: MonitoredRun, writer: ScalarWriter, every: int = 100) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise InvalidArgumentError(
                f"writer: got {writer!r}; expected an object with add_scalar(tag, value, step),"
                " such as the SummaryWriter of torch.utils.tensorboard or tensorboardX"
            )
        self._watched = watched  # it lives as long as its sender
        self._writing = _ScalarWriting(watched, writer, checked_count(every, "every", least=1))

    def step(self, number: int | None = None) -> None:
        """Record that a training step has ended. The first failure of the writer is logged.

        Args:
            number: which step, from 0; `None` for the next one.
        """
        self._writing.step(number)

    def send(self, number: int) -> None:
        """Write the scalars of this moment as those of a step.

        Args:
            number: which step, from 0.
        """
        self._writing.send(number)


class _ScalarWriting:
    """The part of a sender that its monitor keeps. It keeps no monitor: that would be a circle."""

    def __init__(self, watched: MonitoredRun, writer: ScalarWriter, every: int) -> None:
        self._watched = weakref.ref(watched)
        self._writer = writer
        self._every = every
        self._step = 0
        self._has_failed = False
        self._group = _group_of_writer(watched, writer)

    def step(self, number: int | None = None) -> None:
        number = self._step if number is None else number
        self._step = number + 1
        if self._step % self._every == 0:
            try:
                self.send(number)
            except Exception:
                if not self._has_failed:  # log once: a full disk fails every later step, too
                    self._has_failed = True
                    _log.exception(
                        "%r cannot write scalars; training continues, and further failures of this"
                        " writer are not logged",
                        self._writer,
                    )

    def send(self, number: int) -> None:
        watched = self._watched()
        if watched is not None:
            for tag, value in watched.scalars().items():
                self._writer.add_scalar(self._group + tag.removeprefix("data"), value, number)


_writers: Final[WeakKeyDictionary[Any, list[Exported]]] = WeakKeyDictionary()


def _group_of_writer(watched: MonitoredRun, writer: ScalarWriter) -> str:
    """Return the first part of the tags of a run in a writer."""
    with LOCK:
        try:
            others = _writers.setdefault(writer, [])
        except TypeError:  # no weak references to it, or no hash
            return "data"
        # The records hold no monitor: a writer must not keep those alive that the user has dropped.
        alive = weakref.ref(watched)
        closed = getattr(watched, "_closed", None)

        def is_over() -> bool:
            return alive() is None or (closed is not None and closed.is_set())

        shown = with_number(Exported((), id(watched), is_over), others)
        others[:] = [*without_replaced(shown, others), shown]
    return "data" if shown.number == 1 else f"data-{shown.number}"
