"""Hooks that write summaries: of the speed, and of what the graph summarizes."""

from __future__ import annotations

from typing import Any

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.protos.summaries import summary_classes
from aioqueue.compat.v1.session.hooks import (
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    needed_global_step,
)
from aioqueue.compat.v1.session.scaffold import Scaffold
from aioqueue.compat.v1.summaries.backend import can_write
from aioqueue.compat.v1.summaries.encoding import encoded_scalars
from aioqueue.compat.v1.summaries.writer import FileWriter, FileWriterCache

__all__ = ("StepCounterHook", "SummarySaverHook")

START = 1
"""The status of a session that begins, in a ``SessionLog``."""


class StepCounterHook(SessionRunHook):
    """Logs how many global steps are made per second.

    Args:
        every_n_steps: log every so many steps.
        every_n_secs: log every so many seconds, instead.
        output_dir: where the same is written as a summary; None for nowhere.
        summary_writer: what writes it, instead.

    Raises:
        ValueError: not exactly one of the first two is given.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._directory = output_dir
        self._writer = summary_writer

    def begin(self) -> None:
        """Find the global step."""
        if self._writer is None and self._directory is not None:
            self._writer = FileWriterCache.get(self._directory)
        self._global_step = needed_global_step("StepCounterHook")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log, if it is time to."""
        if self._timer.should_trigger_for_step(run_values.results + 1):
            step = int(run_context.session.run(self._global_step))
            if self._timer.should_trigger_for_step(step):
                seconds, steps = self._timer.update_last_triggered_step(step)
                if seconds and steps is not None:
                    self._tell(steps / seconds, step)

    def _tell(self, rate: float, step: int) -> None:
        logging.info("global_step/sec: %g", rate)
        if self._writer is not None and can_write():
            self._writer.add_summary(encoded_scalars(b"global_step/sec", rate), step)


class SummarySaverHook(SessionRunHook):
    """Writes summaries every so many steps, or seconds.

    Args:
        save_steps: write every so many steps.
        save_secs: write every so many seconds, instead.
        output_dir: where to.
        summary_writer: what writes them, instead.
        scaffold: whose ``summary_op`` to run.
        summary_op: what to run, instead.

    Raises:
        ValueError: not exactly one of the first two, or of the last two, is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: FileWriter | None = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._directory = output_dir
        self._writer = summary_writer
        self._scaffold = scaffold
        self._summary_op = summary_op

    def begin(self) -> None:
        """Find the global step, and what writes."""
        if self._writer is None and self._directory is not None:
            self._writer = FileWriterCache.get(self._directory)
        self._next_step: int | None = None
        self._global_step = needed_global_step("SummarySaverHook")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step and, if it is time to, the summaries."""
        self._is_due = self._next_step is None or self._timer.should_trigger_for_step(
            self._next_step
        )
        fetches = {"global_step": self._global_step}
        summary = self._summary()
        if self._is_due and summary is not None:
            fetches["summary"] = summary
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write them."""
        if self._writer is None:
            return
        step = int(run_values.results["global_step"]) + 1
        if self._is_due:
            step = int(run_context.session.run(self._global_step))
            if self._next_step is None and can_write():
                self._writer.add_session_log(summary_classes()["SessionLog"](status=START), step)
            self._timer.update_last_triggered_step(step)
            if "summary" in run_values.results:
                for data in _each(run_values.results["summary"]):
                    self._writer.add_summary(data, step)
        self._next_step = step + 1

    def end(self, session: Any) -> None:
        """Write what is kept in memory."""
        if self._writer is not None:
            self._writer.flush()

    def _summary(self) -> Any:
        if self._summary_op is not None:
            return self._summary_op
        assert self._scaffold is not None, "one of both is given"
        return self._scaffold.summary_op


def _each(summaries: Any) -> list[bytes]:
    return summaries if isinstance(summaries, list) else [summaries]
