"""A few numbers of a run on the way of the metrics of the training: for TensorBoard's writers."""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from aioqueue.checks import checked_count
from aioqueue.errors import InvalidArgumentError
from aioqueue.telemetry.watched import Watched

__all__ = ("ScalarSender", "ScalarWriter")


_log: Final = logging.getLogger("aioqueue")


class ScalarWriter(Protocol):
    """What takes scalars: a ``SummaryWriter`` of PyTorch or tensorboardX, or one like it."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any:
        """Note a value of a step."""


class ScalarSender:
    """Writes `scalars` of a run as the training goes on: once in so many steps.

    Args:
        watched: the run, a monitor.
        writer: has ``add_scalar(tag, value, step)``.
        every: how many steps there are from one to the next, >= 1.

    Raises:
        InvalidArgumentError: `writer` has no ``add_scalar``, or `every` is out of range.
    """

    def __init__(self, watched: Watched, writer: ScalarWriter, every: int = 100) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise InvalidArgumentError(
                f"writer: got {writer!r}; expected one with add_scalar(tag, value, step), as the"
                " SummaryWriter of torch.utils.tensorboard or tensorboardX"
            )
        self._watched = watched
        self._writer = writer
        self._every = checked_count(every, "every", least=1)
        self._step = 0
        self._has_failed = False

    def step(self, number: int | None = None) -> None:
        """A step of the training has ended. The first failure of the writer goes to the log.

        Args:
            number: which, from 0; `None`: the next one.
        """
        number = self._step if number is None else number
        self._step = number + 1
        if self._step % self._every == 0:
            try:
                self.send(number)
            except Exception:
                if not self._has_failed:  # once: the disk stays full for the next thousand, too
                    self._has_failed = True
                    _log.exception(
                        "%r cannot write scalars; the training goes on, and further failures of"
                        " this kind are not logged",
                        self._writer,
                    )

    def send(self, number: int) -> None:
        """Write the scalars now, as those of a step.

        Args:
            number: which step, from 0.
        """
        for tag, value in self._watched.scalars().items():
            self._writer.add_scalar(tag, value, number)
