"""`CheckpointSaverHook`: a training loop that saves its variables from time to time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from aioqueue.compat.v1 import logging
from aioqueue.compat.v1.core.scopes import GraphKeys, get_collection
from aioqueue.compat.v1.session.hooks import (
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    needed_global_step,
)

__all__ = ("CheckpointSaverHook", "CheckpointSaverListener")


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
        del save_graph_def
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._saver = saver
        self._scaffold = scaffold
        self._folder = os.fspath(checkpoint_dir)
        self._path = os.path.join(self._folder, checkpoint_basename)
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._listeners = list(listeners or ())

    def begin(self) -> None:
        """Find the global step."""
        self._global_step = needed_global_step("CheckpointSaverHook")
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Save what the loop begins with."""
        os.makedirs(self._folder, exist_ok=True)
        step = int(session.run(self._global_step))
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Save if it is time."""
        if not self._timer.should_trigger_for_step(int(run_values.results) + 1):
            return
        # What was fetched may be of before the step.
        step = int(run_context.session.run(self._global_step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        """Save what the loop ends with."""
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
