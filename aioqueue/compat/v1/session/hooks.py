"""Hooks: what a monitored session calls around its runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.core.scopes import GraphKeys, get_collection
from aioqueue.compat.v1.ops.variables import get_global_step
from aioqueue.compat.v1.summaries.writer import FileWriterCache

__all__ = (
    "CheckpointSaverHook", "CheckpointSaverListener", "FeedFnHook", "FinalOpsHook",
    "LoggingTensorHook", "NanLossDuringTrainingError", "NanTensorHook", "SecondOrStepTimer",
    "SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues", "StopAtStepHook",
    "SummarySaverHook",
)  # fmt: skip


class SessionRunArgs(NamedTuple):
    """What a hook adds to a run, or what the caller asked of it."""

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: Any = None


class SessionRunValues(NamedTuple):
    """What a run has given a hook."""

    results: Any
    options: Any
    run_metadata: Any


class SessionRunContext:
    """One run, as its hooks see it."""

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args: SessionRunArgs = original_args
        self.session: Any = session
        self.stop_requested: bool = False

    def request_stop(self) -> None:
        """Let this run be the last one: ``should_stop()`` is true after it."""
        self.stop_requested = True


class SessionRunHook:
    """Base class of hooks: override the methods that are of interest."""

    def begin(self) -> None:
        """Called once, before the session is made; the graph may still be changed."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called when the session is made and its queue runners run; again if it is made again."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not fail."""

    def end(self, session: Any) -> None:
        """Called once, when the session ends without a failure, before it is closed."""


class SecondOrStepTimer:
    """Tells every how many seconds, or steps, something is due."""

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if every_secs is None and every_steps is None:
            raise ValueError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise ValueError("Can not provide both every_secs and every_steps.")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self.reset()

    def reset(self) -> None:
        """Begin anew: it is due at once."""
        self._last: tuple[float, int] | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is due at this step. Never twice for one step."""
        if self._last is None:
            return True
        when, last_step = self._last
        if step == last_step:
            return False
        if self._every_secs is not None:
            return monotonic() >= when + self._every_secs
        assert self._every_steps is not None
        return step >= last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Note that it was done at this step."""
        now, before = monotonic(), self._last
        self._last = now, step
        return (None, None) if before is None else (now - before[0], step - before[1])

    def last_triggered_step(self) -> int | None:
        """The step at which it was done last; None if it never was."""
        return None if self._last is None else self._last[1]


class StopAtStepHook(SessionRunHook):
    """Stops when the global step has reached a number."""

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise ValueError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        self._global_step = needed_global_step("StopAtStepHook")

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._global_step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        assert self._last_step is not None
        # The run may have read the step before or after it was increased: look again near the end.
        if (
            run_values.results + 1 >= self._last_step
            and run_context.session.run(self._global_step) >= self._last_step
        ):
            run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Logs the values of some tensors, every so many runs or seconds, or at the end."""

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError(
                "either at_end and/or exactly one of every_n_iter and every_n_secs must be"
                " provided."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        self._tensors: dict[str, Any] = (
            dict(tensors)
            if isinstance(tensors, Mapping)
            else {one if isinstance(one, str) else one.name: one for one in tensors}
        )
        self._formatter = formatter
        self._at_end = at_end
        self._timer = None if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)

    def begin(self) -> None:
        if self._timer is not None:
            self._timer.reset()
        self._runs = 0
        graph = get_default_graph()
        self._fetches = {tag: graph.as_graph_element(one) for tag, one in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        self._is_due = self._timer is not None and self._timer.should_trigger_for_step(self._runs)
        return SessionRunArgs(self._fetches) if self._is_due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._is_due:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: Any) -> None:
        if self._at_end:
            self._log(session.run(self._fetches))

    def _log(self, values: dict[str, Any]) -> None:
        seconds = None
        if self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._runs)
        if self._formatter is not None:
            logging.info(self._formatter(values))
            return
        line = ", ".join(f"{tag} = {values[tag]}" for tag in self._tensors)
        logging.info("%s" if seconds is None else f"%s ({seconds:.3f} sec)", line)


class SummarySaverHook(SessionRunHook):
    """Runs summaries in the first step and then every so often, and writes them."""

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary_op = summary_op
        self._writer = summary_writer
        self._folder = output_dir
        self._scaffold = scaffold
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)

    def begin(self) -> None:
        self._next_step: int | None = None
        step = needed_global_step("SummarySaverHook")
        with get_default_graph().name_scope(f"{step.op.name}/"):
            self._step_before = step + 0

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._is_due = self._next_step is None or self._timer.should_trigger_for_step(
            self._next_step
        )
        op = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        ops = [] if op is None or not self._is_due else op if isinstance(op, list) else [op]
        return SessionRunArgs((self._step_before, ops))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not (self._writer or self._folder):
            return
        before, summaries = run_values.results
        if summaries and self._writer is None:  # a loop without summaries needs no backend
            self._writer = FileWriterCache.get(self._folder)
        step = int(before) + 1
        if self._is_due:  # the run may have increased the step, or not
            step = int(run_context.session.run(self._step_before))
            self._timer.update_last_triggered_step(step)
            for summary in summaries:
                self._writer.add_summary(summary, step)
        self._next_step = step + 1

    def end(self, session: Any) -> None:
        if self._writer:
            self._writer.flush()


class NanLossDuringTrainingError(RuntimeError):
    """A loss is no number any more."""

    def __str__(self) -> str:
        return "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Stops when a loss is no number any more."""

    def __init__(self, loss_tensor: Tensor, fail_on_nan_loss: bool = True) -> None:
        self._loss = loss_tensor
        self._fails = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not np.isnan(run_values.results):
            return
        if self._fails:
            logging.error("Model diverged with loss = NaN.")
            raise NanLossDuringTrainingError
        logging.warning("Model diverged with loss = NaN.")
        run_context.request_stop()


class FinalOpsHook(SessionRunHook):
    """Runs something once, at the end."""

    def __init__(
        self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None
    ) -> None:
        self._final_ops = final_ops
        self._feed_dict = final_ops_feed_dict
        self.final_ops_values: Any = None

    def end(self, session: Any) -> None:
        if self._final_ops is not None:
            self.final_ops_values = session.run(self._final_ops, feed_dict=self._feed_dict)


class FeedFnHook(SessionRunHook):
    """Feeds what a function returns into every run."""

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())


def needed_global_step(hook: str) -> Any:
    """The global step, for a hook that cannot do without."""
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {hook}.")
    return step


class CheckpointSaverListener:
    """What is called around each save: subclass it, and give it to a `CheckpointSaverHook`."""

    def begin(self) -> None:
        """The session is about to be made."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """A checkpoint is about to be written."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """A checkpoint has been written; return True to end the training loop."""

    def end(self, session: Any, global_step_value: int) -> None:
        """The training loop has ended."""


class CheckpointSaverHook(SessionRunHook):
    """Saves variables at the beginning, every so often, and at the end of a training loop."""

    def __init__(
        self,
        checkpoint_dir: str,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._saver = saver
        self._scaffold = scaffold
        self._folder = os.fspath(checkpoint_dir)
        self._path = os.path.join(self._folder, checkpoint_basename)
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._listeners = list(listeners or ())

    def begin(self) -> None:
        self._global_step = needed_global_step("CheckpointSaverHook")
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        os.makedirs(self._folder, exist_ok=True)
        step = int(session.run(self._global_step))
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if not self._timer.should_trigger_for_step(int(run_values.results) + 1):
            return
        # What was fetched may be of before the step.
        step = int(run_context.session.run(self._global_step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        step = int(session.run(self._global_step))
        if step != self._timer.last_triggered_step():
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        """Save; whether a listener wants the loop to end."""
        logging.info("Saving checkpoints for %d into %s.", step, self._path)
        for listener in self._listeners:
            listener.before_save(session, step)
        self._needed_saver().save(session, self._path, global_step=step)
        wants_end = [listener.after_save(session, step) for listener in self._listeners]
        return any(wants_end)

    def _needed_saver(self) -> Any:
        if self._saver is not None:
            return self._saver
        if self._scaffold is not None:
            return self._scaffold.saver
        found = get_collection(GraphKeys.SAVERS)
        if len(found) != 1:
            there = "More than one item" if found else "No items"
            raise RuntimeError(
                f"{there} in collection {GraphKeys.SAVERS}: give the saver, or the scaffold, to"
                " CheckpointSaverHook."
            )
        self._saver = found[0]
        return self._saver
