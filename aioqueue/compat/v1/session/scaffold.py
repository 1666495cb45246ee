"""What makes the session of a monitored session, and initialises its graph: `Scaffold`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aioqueue.compat.v1.core.default_graph import get_default_graph
from aioqueue.compat.v1.core.scopes import GraphKeys, get_collection
from aioqueue.compat.v1.ops.control import group
from aioqueue.compat.v1.ops.variables import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)
from aioqueue.compat.v1.session.checkpoints import get_checkpoint_state
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.session import Session
from aioqueue.compat.v1.summaries.ops import merge_all

__all__ = ("ChiefSessionCreator", "Scaffold", "SessionCreator", "collected", "local_initializer")


class Scaffold:
    """The operations that bring a graph into being: what initialises it, and when it is ready.

    Args:
        init_op: initialises the model; None for all global variables.
        init_feed_dict: fed to it.
        init_fn: called after it as ``init_fn(scaffold, session)``.
        ready_op: fetches the names of what is not initialised; None for those of all variables.
        ready_for_local_init_op: the same, asked before ``local_init_op`` runs.
        local_init_op: initialises what each session has of its own; None for all local variables,
            such as epoch counters, and tables.
        summary_op: what summarizes a step; None for all summaries of the graph.
        saver: saves and restores the variables; None for one of all global variables.
        copy_from_scaffold: a scaffold to take what is None from.
        local_init_feed_dict: fed to ``local_init_op``.
    """

    init_op: Any
    init_feed_dict: Any
    init_fn: Callable[[Scaffold, Any], object] | None
    ready_op: Any
    ready_for_local_init_op: Any
    local_init_op: Any
    local_init_feed_dict: Any
    summary_op: Any
    saver: Any

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], object] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Any = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        given = {
            "init_op": init_op,
            "init_feed_dict": init_feed_dict,
            "init_fn": init_fn,
            "ready_op": ready_op,
            "ready_for_local_init_op": ready_for_local_init_op,
            "local_init_op": local_init_op,
            "local_init_feed_dict": local_init_feed_dict,
            "summary_op": summary_op,
            "saver": saver,
        }
        for name, value in given.items():
            setattr(self, name, getattr(copy_from_scaffold, name, None) if value is None else value)

    def finalize(self) -> Scaffold:
        """Make what is still None, and let nothing be added to the default graph from then on."""
        if self.init_op is None:
            self.init_op = collected(GraphKeys.INIT_OP, global_variables_initializer)
        if self.local_init_op is None:
            self.local_init_op = collected(GraphKeys.LOCAL_INIT_OP, local_initializer)
        if self.ready_for_local_init_op is None:
            self.ready_for_local_init_op = collected(
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables()),
            )
        if self.ready_op is None:
            self.ready_op = collected(GraphKeys.READY_OP, report_uninitialized_variables)
        if self.summary_op is None:
            self.summary_op = collected(GraphKeys.SUMMARY_OP, merge_all)
        if self.saver is None:
            self.saver = collected(GraphKeys.SAVERS, lambda: Saver(allow_empty=True))
        self.saver.build()
        get_default_graph().finalize()
        return self

    def initialize(
        self, session: Any, checkpoint_dir: str | None = None, checkpoint: str | None = None
    ) -> None:
        """Initialise everything in a new session.

        Args:
            session: the session.
            checkpoint_dir: a folder whose latest checkpoint is restored, if it has one, instead of
                initialising the model.
            checkpoint: the path of one that is restored.

        Raises:
            RuntimeError: nothing initialises the model; or something is not initialised all the
                same, and is named.
        """
        if not self._restore(session, checkpoint_dir, checkpoint):
            if self.init_op is None and self.init_fn is None and self.local_init_op is None:
                raise RuntimeError(
                    "Model is not initialized and no init_op or init_fn or local_init_op was given"
                )
            if self.init_op is not None:
                session.run(self.init_op, feed_dict=self.init_feed_dict)
            if self.init_fn is not None:
                self.init_fn(self, session)
        why = self.make_ready(session)
        if why is not None:
            raise RuntimeError(f"Init operations did not make model {why}")

    def make_ready(self, session: Any) -> str | None:
        """Initialise what each session has of its own, if the model itself is initialised.

        Args:
            session: the session.

        Returns:
            What is missing, in the words of an error; None if the session is ready.
        """
        if self.local_init_op is not None:
            missing = _missing(session, self.ready_for_local_init_op)
            if missing:
                return f"ready for local_init.  {self._inits()}, error: {missing}"
            session.run(self.local_init_op, feed_dict=self.local_init_feed_dict)
        missing = _missing(session, self.ready_op)
        if missing:
            local = f"local_init_op: {_name(self.local_init_op)}"
            return f"ready.  {self._inits()}, {local}, error: {missing}"
        return None

    def _inits(self) -> str:
        return f"Init op: {_name(self.init_op)}, init fn: {self.init_fn}"

    def _restore(self, session: Any, folder: str | None, checkpoint: str | None) -> bool:
        """Restore the model; False if there is nothing to restore."""
        if checkpoint:
            self.saver.restore(session, checkpoint)
            return True
        state = get_checkpoint_state(folder) if folder and self.saver else None
        if state is None:
            return False
        self.saver.restore(session, state.model_checkpoint_path)
        self.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        return True


class SessionCreator:
    """Base class of what makes the session of a `MonitoredSession`."""

    def create_session(self) -> Any:
        """Make a session, ready to be used."""
        raise NotImplementedError("create_session is not implemented.")


class ChiefSessionCreator(SessionCreator):
    """Makes sessions that initialise the model.

    Args:
        scaffold: what initialises it; None for one with every default.
        master: target of the session.
        config: configuration of the session.
        checkpoint_dir: a folder whose latest checkpoint is restored, if it has one, instead of
            initialising the model.
        checkpoint_filename_with_path: the path of a checkpoint that is restored.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._scaffold = Scaffold() if scaffold is None else scaffold
        self._master = master
        self._config = config
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint = checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Make a session in which everything is initialised."""
        self._scaffold.finalize()
        session = Session(self._master, graph=get_default_graph(), config=self._config)
        try:
            self._scaffold.initialize(session, self._checkpoint_dir, self._checkpoint)
        except BaseException:
            session.close()
            raise
        return session


def local_initializer() -> Any:
    """An op that initialises what each session has of its own."""
    return group(local_variables_initializer(), tables_initializer())


def collected(key: str, make: Callable[[], Any]) -> Any:
    """What the default graph's collection has under a key; else a new one, which is put there."""
    found = get_collection(key)
    if found:
        return found[0]
    made = make()
    if made is not None:
        get_default_graph().add_to_collection(key, made)
    return made


def _missing(session: Any, ready_op: Any) -> str:
    """What an op says is not initialised; nothing if there is no such op."""
    names = [] if ready_op is None else [name.decode() for name in session.run(ready_op)]
    return f"Variables not initialized: {', '.join(names)}" if names else ""


def _name(op: Any) -> str:
    return str(getattr(op, "name", op))
