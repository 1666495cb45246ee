"""Hooks: what a monitored session calls around its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.variables import get_global_step

__all__ = (
    "FeedFnHook",
    "FinalOpsHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StopAtStepHook",
    "needed_global_step",
)


class SessionRunArgs(NamedTuple):
    """What a hook adds to a run, or what the caller asked of it.

    Args:
        fetches: as for ``Session.run``.
        feed_dict: as for ``Session.run``.
        options: as for ``Session.run``.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: Any = None


class SessionRunValues(NamedTuple):
    """What a run has given a hook.

    Attributes:
        results: the values of the hook's fetches; None if it asked for none.
        options: the options of the run.
        run_metadata: what the run has recorded about itself.
    """

    results: Any
    options: Any
    run_metadata: Any


class SessionRunContext:
    """One run, as its hooks see it.

    Args:
        original_args: what the caller asked for, as `SessionRunArgs`.
        session: the session that runs it, in which a hook may run more.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False

    @property
    def original_args(self) -> SessionRunArgs:
        """What the caller asked for."""
        return self._original_args

    @property
    def session(self) -> Any:
        """The session that runs it."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Let this run be the last one: ``should_stop()`` is true after it."""
        self._stop_requested = True


class SessionRunHook:
    """Base class of hooks: override the methods that are of interest."""

    def begin(self) -> None:
        """Called once, before the session is made; the graph may still be changed."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called when the session is made and its queue runners run; again if it is made again.

        Args:
            session: the session.
            coord: the `Coordinator` of its threads.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run.

        Args:
            run_context: the run.

        Returns:
            What to fetch and feed besides; None for nothing.
        """
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not fail.

        Args:
            run_context: the run; may be asked to be the last one.
            run_values: what it has given this hook.
        """

    def end(self, session: Any) -> None:
        """Called once, when the session ends without a failure, before it is closed.

        Args:
            session: the session, in which more may be run.
        """


class SecondOrStepTimer:
    """Tells every how many seconds, or steps, something is due.

    Args:
        every_secs: the seconds; None to count steps.
        every_steps: the steps; None to count seconds.

    Raises:
        ValueError: not exactly one is given.
    """

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
        """Note that it was done at this step.

        Returns:
            Seconds and steps since it was done before; None and None the first time.
        """
        now, before = monotonic(), self._last
        self._last = now, step
        return (None, None) if before is None else (now - before[0], step - before[1])

    def last_triggered_step(self) -> int | None:
        """The step at which it was done last; None if it never was."""
        return None if self._last is None else self._last[1]


class StopAtStepHook(SessionRunHook):
    """Stops when the global step has reached a number.

    Args:
        num_steps: steps to make from where the session begins.
        last_step: the global step to stop at.

    Raises:
        ValueError: not exactly one is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise ValueError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        """Find the global step."""
        self._global_step = needed_global_step("StopAtStepHook")

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Count from the global step that the session begins with."""
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._global_step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop, if it is reached."""
        assert self._last_step is not None
        # The run may have read the step before or after it was increased: look again near the end.
        if (
            run_values.results + 1 >= self._last_step
            and run_context.session.run(self._global_step) >= self._last_step
        ):
            run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Logs the values of some tensors, every so many runs or seconds, or at the end.

    Args:
        tensors: tensors or names of them, in a list, or in a dict by what to call them.
        every_n_iter: log every so many runs.
        every_n_secs: log every so many seconds.
        at_end: log when the session ends.
        formatter: makes the line of a dict of values; None for ``name = value, ...``.

    Raises:
        ValueError: none of the three times is given, or both of the first two are.
    """

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
        """Find the tensors that were given by name."""
        if self._timer is not None:
            self._timer.reset()
        self._runs = 0
        graph = get_default_graph()
        self._fetches = {tag: graph.as_graph_element(one) for tag, one in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors, if it is time to log them."""
        self._is_due = self._timer is not None and self._timer.should_trigger_for_step(self._runs)
        return SessionRunArgs(self._fetches) if self._is_due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log them."""
        if self._is_due:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: Any) -> None:
        """Log them once more, if asked to."""
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


class NanLossDuringTrainingError(RuntimeError):
    """A loss is no number any more."""

    def __str__(self) -> str:
        return "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Stops when a loss is no number any more.

    Args:
        loss_tensor: the loss.
        fail_on_nan_loss: whether to raise `NanLossDuringTrainingError` then.
    """

    def __init__(self, loss_tensor: Tensor, fail_on_nan_loss: bool = True) -> None:
        self._loss = loss_tensor
        self._fails = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the loss."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Look at it."""
        if not np.isnan(run_values.results):
            return
        if self._fails:
            logging.error("Model diverged with loss = NaN.")
            raise NanLossDuringTrainingError
        logging.warning("Model diverged with loss = NaN.")
        run_context.request_stop()


class FinalOpsHook(SessionRunHook):
    """Runs something once, at the end.

    Args:
        final_ops: what to fetch.
        final_ops_feed_dict: what to feed.
    """

    def __init__(
        self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None
    ) -> None:
        self._final_ops = final_ops
        self._feed_dict = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """What was fetched; None before the end."""
        return self._values

    def end(self, session: Any) -> None:
        """Fetch it."""
        if self._final_ops is not None:
            self._values = session.run(self._final_ops, feed_dict=self._feed_dict)


class FeedFnHook(SessionRunHook):
    """Feeds what a function returns into every run.

    Args:
        feed_fn: returns a ``feed_dict``.
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Ask for it."""
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())


def needed_global_step(hook: str) -> Any:
    """The global step, for a hook that cannot do without.

    Raises:
        RuntimeError: the graph has no global step.
    """
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {hook}.")
    return step
