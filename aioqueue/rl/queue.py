"""`RolloutQueue`, async and blocking: what generates, and what trains, meet here."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from time import perf_counter
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, Final, Generic, Literal, NoReturn, Protocol, Self, TypeVar

import anyio

from aioqueue import Explanation, Latest, sync
from aioqueue.base.arguments import (
    checked_count,
    checked_flag,
    checked_positive,
    checked_seconds,
    is_coroutine_function,
)
from aioqueue.base.display_text import on_one_line
from aioqueue.base.hints import hint_attributes, hint_methods, refuse_block, refuse_search
from aioqueue.base.public_names import (
    DeferredModule,
    World,
    describe,
    name_methods,
    public,
    with_sections,
)
from aioqueue.base.tracebacks import SHORTENED
from aioqueue.coordination.aio import Startable
from aioqueue.coordination.blocking import ThreadStartable
from aioqueue.coordination.cancellations import running_task
from aioqueue.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    counted,
)
from aioqueue.inputs import Retry
from aioqueue.rl.core import Evaluation, GroupPayload, Judge, Prompt, Publisher, RolloutCore, Taker
from aioqueue.rl.generation import Generation, checked_work
from aioqueue.rl.hosts import Work, new_host
from aioqueue.rl.machine import GroupState, RolloutMachine, Stored
from aioqueue.rl.prompts import prompt_reader
from aioqueue.rl.report import explanation_of, note_rollouts
from aioqueue.rl.rollout import Batch, Group, Publication, Rollout, checked_steps
from aioqueue.rl.state import ResultFolder, checked_seed, checked_state, sealed_state
from aioqueue.rl.statistics import RolloutStatistics, statistics_of
from aioqueue.sources.shuffling import resolved_seed
from aioqueue.system.forks import inherited_object, is_inherited, note_for_forks
from aioqueue.system.locks import call_with_lock
from aioqueue.worlds.current import current_waker
from aioqueue.worlds.scopes import Gate, current_scopes
from aioqueue.worlds.waker import Owner, in_event_loop

P = TypeVar("P")
R = TypeVar("R")

_ARGUMENTS: Final = """\
Args:
    prompts: what to generate from: a source or pipeline of `aioqueue.inputs`, with its epochs, its
        shuffling and its mixtures; a sequence; or another iterable, whose run cannot be resumed.
    batch_size: how many groups a step has; with ``weigh``, how much its groups weigh together.
    group_size: how many rollouts a prompt gets, or a function of the prompt that says so.
    steps_ahead: how many steps the generation may be ahead of the training; a part of a step is
        allowed. 0 is the synchronous loop. It is the mean staleness, not the bound.
    max_in_flight: how many rollouts run at once; 0 is a pause. ``None`` for as many as the groups
        have that may exist.
    order: which groups make a batch: ``"oldest"`` takes those that are ready by the order of their
        prompts, ``"ready"`` in the order in which they became ready, and ``"strict"`` waits for
        each, so that batches depend on the prompts, the seed and the results alone.
    accept: a function, or coroutine function, that sees each complete group, may score it into
        ``group.info``, and returns whether to train on it. A plain function runs where the last
        rollout has ended: in the event loop, or on the thread.
    on_refused: ``"replace"`` generates another group in the place of one that was refused;
        ``"shorten"`` leaves its place in the batch empty.
    on_error: what happens when a rollout fails for good: ``"raise"`` ends the run, ``"drop"`` drops
        the group, ``"partial"`` keeps the others, if they are at least ``min_group_size``.
    min_group_size: see ``on_error``.
    max_staleness: how many steps old a group may be when it is trained, unless ``on_stale`` is
        ``"train"``.
    on_stale: ``"train"`` has no bound. ``"wait"`` lets the trainer wait for old groups in time.
        ``"drop"`` drops groups that are ready and too old, ``"cancel"`` also those that are still
        generated. Both drop more of the prompts that take long, so they bias the training.
    stale_prompt: whether a prompt whose group was dropped for its age is generated ``"again"``, or
        is one of those that ``"drop"`` leaves out.
    weigh: a function that returns what a complete group weighs, its tokens say.
    max_weight: the most that a group can weigh; ``None`` takes the mean of the last ones. Only a
        true maximum keeps the bound of ``order="strict"``.
    seed: for the seeds of rollouts; ``None`` takes fresh entropy.
    drop_remainder: whether the last, short batch is dropped.
    max_refused: how many batches of groups may be refused or dropped in a row, before the run ends
        with a `StarvedError`; ``None`` for any number.
    keep_results: a folder in which `state_dict` stores the groups that are ready, with `pickle`, so
        that a resumed run does not generate them again. Load only files that you trust.
    name: the name in messages; ``None`` generates one.

Raises:
    InvalidArgumentError: an argument is wrong, or two do not go together.
"""


class Generating(Startable, ThreadStartable, Protocol):
    """What `RolloutQueue.generate` returns: coordinators of both faces can start it."""


Drain = bool | Literal["safe"]
_DRAINS: Final[Mapping[Any, Any]] = {False: "no", True: "ended", "safe": "safe"}
_UNSET: Final[Any] = ...


def _checked_choice(value: Any, what: str, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        listed = ", ".join(repr(one) for one in choices[:-1])
        raise InvalidArgumentError(f"{what}: got {value!r}; expected {listed} or {choices[-1]!r}")
    return value


_sharing: Any = DeferredModule("aioqueue.rl.sharing")  # used by `share` only


@hint_attributes("a RolloutQueue")
class RolloutQueueFace(Generic[P, R]):
    """One face of a `RolloutQueue`: here, everything that never waits."""

    _core: RolloutCore
    _world: ClassVar[World]

    def _was_forked(self) -> None:
        core = self._core
        if is_inherited(core):
            return
        if core.shared is not None:
            core.shared.adopt_in_fork(self)
        elif core.has_started:
            self._core = inherited_object(str(core), core)
        else:
            core.renew()
            note_rollouts(core)

    def __repr__(self) -> str:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        if is_inherited(self._core):
            return f"<{kind} of another process>"
        machine = self._core.machine
        return on_one_line(
            f"<{kind} '{self.name}', step {machine.step},"
            f" version {machine.version}, {counted(len(machine.groups), 'group')}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a queue that is shared; see `share`.

        Raises:
            TypeError: it is not shared.
        """
        core = self._core
        if not is_inherited(core) and core.shared is not None:
            pickled: tuple[Any, ...] = core.shared.pickled(self._world)
            return pickled
        raise TypeError(
            f"{core} cannot be pickled or copied: it lives in one process. Share it"
            " (`rollouts.share()`), and send that to other processes of this machine; or send its"
            " batches. Its state is state_dict()"
        )

    def share(self, *, name: str | None = None) -> Self:
        """Share the queue with the other processes of this machine.

        From now on it can be pickled: pass it to a process as an argument, or inside of anything
        that is. In the other process it is a *handle* of the same queue, with both faces, for a
        trainer there: `get` and `batches`, `publishing` and `evaluate`, `set`, `close`, the state,
        the statistics and explanations. This process owns the queue, and generates.

        A trainer there waits in the same line as those here. Its batch belongs to it as soon as its
        call returns, and it is cancelled exactly. `Batch.done` and `Batch.give_back` work wherever
        a batch, or a part of one (`Batch.split`), is unpickled. If the process that has taken a
        step dies, the step is given back unless it is done. If it dies in a block of `publishing`,
        the block fails: the version stays, and the generation continues. If this process ends,
        calls on handles raise `WorkerDiedError`.

        Prompts and results are pickled. `policy` is shared, too: with ``publishing(weights)``, each
        process gets the weights once. Only processes of the same user can connect.

        The queue lives until this process ends, even if nothing here refers to it any more: nobody
        can know where a pickled handle still is.

        Args:
            name: a name by which other processes of this user find it (`connect`): letters, digits,
                ``-``, ``_`` and ``.``; ``None`` for none.

        Returns:
            The queue itself.

        Raises:
            InvalidArgumentError: the name is not as described, or a living process shares something
                by that name.
            OSError: this system has no Unix sockets, or the socket cannot be made.
        """
        _sharing.share_rollouts(self, name)
        return self

    def __contains__(self, value: object) -> NoReturn:
        """Refuse ``in``, which would wait for ever.

        Raises:
            TypeError: always.
        """
        refuse_search(self, "the search would use up the batches")

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._core.name

    @property
    def seed(self) -> int:
        """The seed from which the seeds of rollouts are made."""
        return self._core.seed

    @property
    def step(self) -> int:
        """The number of the next step: how many were handed out, without those given back."""
        return self._core.given_out

    @property
    def version(self) -> int:
        """How many steps the published weights contain."""
        return self._core.machine.version

    def generate(
        self,
        function: Callable[[P, Rollout[R]], Awaitable[R]] | Callable[[P, Rollout[R]], R],
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        where: Literal["task", "thread", "process"] | None = None,
        workers: int | None = None,
    ) -> Generating:
        """Return what generates the rollouts: pass it to `Coordinator.start`, of either face.

        The function is called with a prompt and a `Rollout`, and returns the sample. A coroutine
        function runs in tasks: of the coordinator's event loop, or of one on a thread of its own
        for a coordinator of `aioqueue.sync`. A plain function runs on threads.

        A stop of the coordinator cancels the tasks, and waits for their clean-up and for the calls
        on threads. A group that was not handed out belongs to the next run.

        With ``where="process"``, the whole generation runs in one child process: the event loop, or
        the threads, with all rollouts in flight. A trainer that keeps the interpreter for itself
        does not stop it: all that the slots allow is generated meanwhile. What `publishing`
        promises holds there, too. Prompts and results are pickled. Plain functions for ``accept``
        and ``weigh`` are called in this process, by the thread that talks to the other one. If the
        process dies, the rollouts whose results have not arrived fail with a `WorkerDiedError`, on
        which ``retry`` and ``on_error`` decide, and another process continues.

        Args:
            function: ``async def generate(prompt, rollout)``, or a plain function.
            retry: whether a rollout that fails is tried again; ``None`` for not at all.
            timeout: seconds that an attempt may take. It then fails with an `ItemTimeoutError`. A
                thread cannot be cut short: its call keeps its place in ``max_in_flight``.
            where: ``"task"``, ``"thread"``, or ``"process"`` for a child process, which must be
                able to import the function; ``None`` goes by the kind of the function.
            workers: how many threads at most; ``None`` for 32. They start when they are needed.

        Raises:
            InvalidArgumentError: an argument is wrong, or the function cannot be pickled.
            RuntimeError: this process may not start others.
        """
        work = checked_work(
            function,
            retry=retry,
            timeout=timeout,
            where=where,
            workers=workers,
        )
        self._core.work = work
        return Generation(self._core, work)

    def set(
        self,
        *,
        batch_size: float | EllipsisType = ...,
        steps_ahead: float | EllipsisType = ...,
        max_in_flight: int | EllipsisType | None = ...,
    ) -> None:
        """Change numbers during the run. What exists stays, and what runs is not cancelled.

        Any thread, task or signal handler may call it. ``max_in_flight=0`` is a pause.

        Args:
            batch_size: as of the constructor; so are the others.
            steps_ahead: how many steps the generation may be ahead.
            max_in_flight: how many rollouts run at once.

        Raises:
            InvalidArgumentError: a number is wrong. Nothing was changed.
        """
        machine = self._core.machine
        size: float | None = None
        ahead: float | None = None
        if batch_size is not ...:
            is_weighed = machine.is_weighed
            size = (
                checked_positive(batch_size, "batch_size")
                if is_weighed
                else checked_count(batch_size, "batch_size", least=1)
            )
        if steps_ahead is not ...:
            ahead = checked_steps_ahead(steps_ahead)
            check_staleness(
                machine.max_staleness, machine.on_stale, ahead, is_weighed=machine.is_weighed
            )
        if max_in_flight is not ...:
            self._core.max_in_flight = (
                None if max_in_flight is None else checked_count(max_in_flight, "max_in_flight")
            )
        self._core.apply(self._set, size, ahead)
        self._core.limit_changed()

    def _set(self, size: float | None, ahead: float | None) -> Any:
        machine = self._core.machine
        machine.batch_size = machine.batch_size if size is None else size
        machine.steps_ahead = machine.steps_ahead if ahead is None else ahead
        return machine.set(limit=self._core.limit())

    def close(self) -> None:
        """Ask for no more prompts. What exists is finished and trained; then the loop ends.

        Returns at once. Any thread, task or signal handler may call it, more than once.
        """
        self._core.apply(self._core.machine.close)

    def state_dict(self) -> dict[str, Any]:
        """The state of the run, from which a new queue continues: after `Batch.done`, or after
        `publishing`.

        It has the source's position at the first prompt that is not trained, and which later ones
        are. A step that is not done is not trained in it. So call it between two steps, by the task
        or thread that trains: in the middle of a step it repeats that step, and loses nothing.
        Rollouts that are not handed out are generated again, but groups that are ready are stored,
        with ``keep_results``.

        Returns:
            A dict of plain JSON types.

        Raises:
            InvalidArgumentError: you can iterate over the prompts only once.
            RuntimeError: the prompts have no position.
            OSError: the results cannot be stored, or the size of a file cannot be read.
        """
        core = self._core
        content, (ordinal, mark), ready = call_with_lock(core._lock, self._snapshot)
        position = core.prompts.position(mark)
        results = [] if self._core.folder is None else self._core.folder.store(ready)
        return sealed_state(
            {
                "seed": core.seed,
                "ordinal": ordinal,
                "position": position,
                "machine": content,
                "results": results,
            }
        )

    def _snapshot(self) -> tuple[dict[str, Any], tuple[int, Any], list[tuple[Stored, Group[P, R]]]]:
        core, machine = self._core, self._core.machine
        lowest = machine.ended.lowest_open
        group = machine.groups.get(lowest)
        prompt: Prompt | None = None if group is None else group.prompt
        if prompt is None and lowest in machine.back.values:
            prompt = machine.back.get(lowest)[0]
        ready = []
        if self._core.folder is not None:
            ready = [
                (Stored(one.version, one.weight), one.payload.public)
                for one in machine.groups.values()
                if one.state is GroupState.READY and not one.is_refused
            ]
        place = core.next_mark if prompt is None else (lowest, prompt.mark)
        return machine.state(), place, ready

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, before the generation has begun.

        Make the queue as before, with the same prompts. Other arguments may differ.

        Args:
            state: what `state_dict` has returned, in this process or another.

        Raises:
            InvalidArgumentError: it is no state, is damaged, or belongs to other prompts or another
                seed; the message names the field that differs.
            RuntimeError: the generation has begun.
        """
        core = self._core
        if core.has_started or core.machine.admitted:
            raise RuntimeError(
                "load_state_dict was called after the generation had begun: make another"
                " RolloutQueue, and call it before coordinator.start(...)"
            )
        content = checked_state(state)
        core.seed = checked_seed(content["seed"], core.seed, was_drawn=core.seed_was_drawn)
        core.prompts.seek(content["position"])
        core.machine.restore(content["machine"])
        core.given_out = core.machine.step
        core.first_ordinal = content["ordinal"]
        core.next_mark = (content["ordinal"], core.prompts.mark())
        if self._core.folder is not None:
            core.stored = self._core.folder.load(content["results"])

    def statistics(self) -> RolloutStatistics:
        """Return the counts of the run so far, and where time went. Any thread may call it."""
        return statistics_of(self._core)

    def explain(self) -> Explanation:
        """Explain what the trainer waits for: names of rollouts and prompts, times and places.

        Any thread may call it at any time.
        """
        return explanation_of(self._core)


def checked_steps_ahead(value: Any) -> float:
    """Return ``steps_ahead``.

    Raises:
        InvalidArgumentError: it is not a number >= 0.
    """
    ahead = checked_seconds_like(value)
    if ahead is None:
        raise InvalidArgumentError(f"steps_ahead: got {value!r}; expected a number >= 0")
    return int(ahead) if ahead == int(ahead) else ahead


def checked_seconds_like(value: Any) -> float | None:
    """Return a finite number >= 0; ``None`` for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < math.inf and not isinstance(value, str) else None


def check_staleness(
    max_staleness: int | None, on_stale: str, steps_ahead: float, *, is_weighed: bool
) -> None:
    """Check that the options for old groups go together.

    Raises:
        InvalidArgumentError: they do not.
    """
    if on_stale == "train":
        if max_staleness is not None:
            raise InvalidArgumentError(
                f"max_staleness: got {max_staleness} with on_stale='train', which has no bound;"
                " expected on_stale='wait', 'drop' or 'cancel', too"
            )
        return
    if max_staleness is None:
        raise InvalidArgumentError(
            f"on_stale: got {on_stale!r} without max_staleness, which says how old is too old"
        )
    if max_staleness < math.ceil(steps_ahead):
        raise InvalidArgumentError(
            f"max_staleness: got {max_staleness} with steps_ahead={steps_ahead:g}; expected at"
            f" least {math.ceil(steps_ahead)}, since the mean staleness is steps_ahead"
        )
    if is_weighed and on_stale == "wait":
        raise InvalidArgumentError(
            "on_stale: got 'wait' with weigh; expected 'train', 'drop' or 'cancel': the weights of"
            " later groups are not known, so nobody can tell whether waiting helps"
        )


class RolloutQueueMethods(RolloutQueueFace[P, R]):
    """The texts of the methods that wait."""

    def batches(self, steps: int | None = None, *, auto_done: bool = True) -> Any:
        """Iterate over the batches, in the order of the steps, until the prompts end.

        The last batch is short if the prompts do not fill it. If a failure ended the run, the loop
        raises it. To leave the loop stops nothing: that is for the coordinator.

        Args:
            steps: stop before the step of this number: so many steps does the whole run have, those
                before a resume included. ``None`` for no limit.
            auto_done: whether to ask for the next batch says that the last one is done. That is
                wrong for a trainer that reads ahead: such a one calls `Batch.done`, or publishes.

        Raises:
            InvalidArgumentError: ``steps`` is not an int >= 0 or ``None``.
            Exception: (of a step) what has ended the run, such as the failure of a rollout.
            StarvedError: (of a step) ``max_refused`` batches of groups in a row were refused or
                dropped.
            WorkerDiedError: (of a step) the generation was cancelled by other code.
            RuntimeError: (of a step) the task or thread publishes weights, so it would wait for
                itself.

        Cancellation:
            A cancelled step has changed nothing: its batch is the next one.
        """
        raise NotImplementedError

    def get(self) -> Any:
        """Wait for the next batch, and return it. It never says that a step is done.

        Args:
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            A `Batch`.

        Raises:
            OutOfRangeError: there are no more.
            DeadlineExceededError: in threads, the timeout has expired. It is a `TimeoutError`.
            CancelledError: the coordinator of the calling worker stops.
            Exception: what has ended the run: see `batches`.
            RuntimeError: the task or thread publishes weights, so it would wait for itself.

        Cancellation:
            A cancelled call has changed nothing: its batch is the next one.
        """
        raise NotImplementedError

    def publishing(
        self, weights: Any = ..., *, drain: Drain = False, steps: int | None = None
    ) -> Any:
        """Publish new weights in the block of this context manager: nothing starts meanwhile.

        No rollout begins inside: none of a new group, no further one, no retry and no evaluation.
        What is in flight continues. When the block ends without an error, the version is the number
        of steps in the new weights, and these steps are done. When it is cancelled or fails, the
        version stays, and the generation continues with the old weights.

        Args:
            weights: are published to `policy`, at the end of the block.
            drain: wait before the block until no rollout runs. ``"safe"`` waits until each is at a
                `Rollout.safe_point`, or has ended.
            steps: how many steps the weights contain; ``None`` for all that were handed out.
            timeout: in threads, seconds to wait at most until the block begins; ``None`` waits for
                ever.

        Returns:
            A context manager. Its ``as`` is a `Publication`.

        Raises:
            InvalidArgumentError: ``steps`` is less than the version, or more than were handed out.
            DeadlineExceededError: in threads, the timeout has expired: nothing was published, and
                the generation continues. It is a `TimeoutError`.
            RuntimeError: the task or thread is in such a block already.
        """
        raise NotImplementedError

    def publish(self, weights: Any = ..., *, steps: int | None = None) -> Any:
        """Publish new weights at once: see `publishing`.

        Args:
            weights: are published to `policy`.
            steps: how many steps they contain; ``None`` for all that were handed out.
            timeout: in threads, seconds to wait at most for other publications; ``None`` waits for
                ever.

        Returns:
            The version.

        Raises:
            InvalidArgumentError: ``steps`` is less than the version, or more than were handed out.
            DeadlineExceededError: in threads, the timeout has expired: nothing was published.
            RuntimeError: the task or thread is in a block of `publishing`.
        """
        raise NotImplementedError

    def evaluate(
        self,
        prompts: Iterable[Any],
        generate: Any = None,
        *,
        group_size: int = 1,
        priority: bool = True,
    ) -> Any:
        """Generate rollouts for prompts that are not trained on, and return their groups.

        They take no slots, and share ``max_in_flight`` with the training. They do so also before
        the first step and after the last one. An evaluation may span publications: each rollout
        has its version. To evaluate one version, do it in the step, before `publishing`.

        Args:
            prompts: the prompts.
            generate: the function; ``None`` for that of the training.
            group_size: how many rollouts each prompt gets.
            priority: whether they start before those of the training. Otherwise they start in the
                turn of the prompt that comes next.
            timeout: in threads, seconds to wait at most; ``None`` waits for ever.

        Returns:
            A list of groups, in the order of the prompts.

        Raises:
            DeadlineExceededError: in threads, the timeout has expired. The rollouts are cancelled,
                and calls on threads are not waited for, unless nothing generates for the training.
                It is a `TimeoutError`.
            Exception: a rollout has failed, and ``on_error`` is ``"raise"``. The others are
                cancelled, and the training goes on.
            InvalidArgumentError: an argument is wrong.
            RuntimeError: there is no function; the queue has been stopped; or the task or thread
                publishes weights, so it would wait for itself.

        Cancellation:
            A cancelled call cancels its rollouts.
        """
        raise NotImplementedError

    def _check_not_publishing(self, what: str, owner: object) -> None:
        """Check that the caller is not in a block of `publishing`.

        Raises:
            RuntimeError: it is.
        """
        publisher = self._core.publisher
        if publisher is None:
            return
        if publisher.owner.thing is owner or _awaits(publisher.owner.thing, owner):
            raise RuntimeError(
                f"{what} within publishing() would wait for itself: nothing starts in the block."
                " Leave the block first"
            )

    def _end_error(self) -> BaseException:
        """Return what `get` raises when there are no more batches."""
        core = self._core
        return OutOfRangeError(f"{core} has ended: there are no more batches", queue=core.name)

    def _publication(self, steps: int | None) -> Publication:
        """Return what a block of `publishing` that begins now will publish."""
        core = self._core
        version = core.machine.version
        if steps is None:
            return Publication(max(core.given_out, version), version)
        return Publication(checked_steps(steps, version, core.given_out), version)

    def _evaluation_work(self, generate: Any) -> Work | None:
        if generate is None:
            if self._core.work is None:
                raise RuntimeError(
                    f"evaluate: {self._core} has no function yet: pass generate=, or start"
                    " generate(function) first"
                )
            return None
        return checked_work(generate, retry=None, timeout=None, where=None, workers=None)


def _awaits(task: object, other: object) -> bool:
    """Return whether a task of asyncio awaits another one, as in `asyncio.wait_for` on Python 3.11.

    It runs what it is given in a task of its own.
    """
    if not (isinstance(task, asyncio.Task) and isinstance(other, asyncio.Task)):
        return False
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None:
        return False
    if awaited is other or other in getattr(awaited, "_children", ()):  # itself, or a `gather`
        return True
    # `wait_for` awaits a future that a callback of the other task sets.
    callbacks = [callback for callback, _ in getattr(other, "_callbacks", None) or ()]
    return any(awaited in callback.args for callback in callbacks if isinstance(callback, partial))


def checked_drain(drain: Any) -> Any:
    """Return what the machine calls ``drain=``.

    Raises:
        InvalidArgumentError: it is another value.
    """
    if not isinstance(drain, bool) and drain != "safe":
        raise InvalidArgumentError(f"drain: got {drain!r}; expected a bool or 'safe'")
    return _DRAINS[drain]


@refuse_block(
    "async with",
    "a RolloutQueue has no block: write `async with aioqueue.Coordinator() as coord:` and"
    " `coord.start(rollouts.generate(function))`",
)
@public("aioqueue.rl", hints="rollouts")
class RolloutQueue(RolloutQueueMethods[P, R]):
    """The queue between generation and training in asynchronous reinforcement learning.

    Your function generates rollouts of the prompts, in groups. The trainer gets batches of groups,
    and publishes new weights, which later rollouts start with. The generation stays at most
    ``steps_ahead`` steps ahead::

        rollouts = RolloutQueue(prompts, batch_size=64, group_size=8, steps_ahead=1, accept=score)

        async with aioqueue.Coordinator() as coord:
            coord.start(rollouts.generate(generate, retry=Retry(3), timeout=1800))
            async for batch in rollouts.batches(steps=1000):
                await asyncio.to_thread(train, batch.groups)
                async with rollouts.publishing():
                    await engine.update(weights)

    At most ``batch_size * (steps_ahead + 1)`` groups exist. The *version* of weights is how many
    steps they contain. The *staleness* of a group is the number of the step that trains it, minus
    the version at which the first of its rollouts started. Every prompt that was admitted is in the
    end trained, refused, dropped or returned, as `statistics` counts; a group that nobody has
    refused is dropped only by an option that says so.

    Any number of tasks may wait for batches, each gets the next one. A plain script uses the other
    face, ``rollouts.sync``, with a coordinator of `aioqueue.sync`.
    """

    __doc__ = with_sections(__doc__, _ARGUMENTS)

    _world = "aio"

    def __init__(
        self: RolloutQueue[P, Any],
        prompts: Iterable[P] | AsyncIterable[P],
        *,
        batch_size: float,
        group_size: int | Callable[[P], int] = 1,
        steps_ahead: float = 1,
        max_in_flight: int | None = None,
        order: Literal["ready", "oldest", "strict"] = "oldest",
        accept: Callable[[Group[P, R]], bool | Awaitable[bool]] | None = None,
        on_refused: Literal["replace", "shorten"] = "replace",
        on_error: Literal["raise", "drop", "partial"] = "raise",
        min_group_size: int = 2,
        max_staleness: int | None = None,
        on_stale: Literal["train", "wait", "drop", "cancel"] = "train",
        stale_prompt: Literal["again", "drop"] = "again",
        weigh: Callable[[Group[P, R]], float] | None = None,
        max_weight: float | None = None,
        seed: int | None = None,
        drop_remainder: bool = False,
        max_refused: int | None = 10,
        keep_results: str | PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(f"name: got {name!r}; expected a string or None")
        reader = prompt_reader(prompts)
        if weigh is None:
            batch_size = checked_count(batch_size, "batch_size", least=1)
        else:
            batch_size = checked_positive(batch_size, "batch_size")
        if not callable(group_size):
            group_size = checked_count(group_size, "group_size", least=1)
        if max_in_flight is not None:
            max_in_flight = checked_count(max_in_flight, "max_in_flight")
        if max_staleness is not None:
            max_staleness = checked_count(max_staleness, "max_staleness")
        if max_refused is not None:
            max_refused = checked_count(max_refused, "max_refused", least=1)
        if max_weight is not None:
            max_weight = checked_positive(max_weight, "max_weight", otherwise=", or None")
        for function, what in ((accept, "accept"), (weigh, "weigh")):
            if function is not None and not callable(function):
                raise InvalidArgumentError(
                    f"{what}: got {function!r}; expected a function of a group"
                )
        if max_weight is not None and weigh is None:
            raise InvalidArgumentError(
                "max_weight: given without weigh, which says what a group weighs"
            )
        if weigh is not None and is_coroutine_function(weigh):
            raise InvalidArgumentError(
                "weigh: got a coroutine function; expected a plain one. An async accept may put the"
                " weight into group.info, for weigh to return"
            )
        ahead = checked_steps_ahead(steps_ahead)
        _checked_choice(on_stale, "on_stale", ("train", "wait", "drop", "cancel"))
        check_staleness(max_staleness, on_stale, ahead, is_weighed=weigh is not None)
        machine = RolloutMachine(
            batch_size=batch_size,
            steps_ahead=ahead,
            order=_checked_choice(order, "order", ("ready", "oldest", "strict")),
            on_refused=_checked_choice(on_refused, "on_refused", ("replace", "shorten")),
            on_error=_checked_choice(on_error, "on_error", ("raise", "drop", "partial")),
            min_group_size=checked_count(min_group_size, "min_group_size", least=1),
            max_staleness=max_staleness,
            on_stale=on_stale,
            stale_prompt=_checked_choice(stale_prompt, "stale_prompt", ("again", "drop")),
            is_weighed=weigh is not None,
            max_weight=max_weight,
            drop_remainder=checked_flag(drop_remainder, "drop_remainder"),
            max_refused=max_refused,
            new_payload=GroupPayload,
        )
        judge = Judge(accept, accept is not None and is_coroutine_function(accept), weigh)
        core = RolloutCore(machine, reader, judge, group_size, resolved_seed(seed), name)
        core.seed_was_drawn = seed is None
        core.folder = None if keep_results is None else ResultFolder(Path(keep_results))
        core.max_in_flight = max_in_flight
        machine.limit = core.limit()
        self._core = core
        note_rollouts(core)
        note_for_forks(self)

    @property
    def policy(self) -> Latest[Any]:
        """The newest weights that were published with ``weights``, for workers that fetch them."""
        return self._core.policy

    @property
    def aio(self) -> Self:
        """The async face of the same queue. That is this face itself."""
        return self

    @property
    def sync(self) -> BlockingRolloutQueue[P, R]:
        """The blocking face of the same queue, for a trainer that is a plain script."""
        face: BlockingRolloutQueue[P, R] = BlockingRolloutQueue.__new__(BlockingRolloutQueue)
        face._core, face._aio = self._core, self
        note_for_forks(face)
        return face

    def batches(
        self, steps: int | None = None, *, auto_done: bool = True
    ) -> AsyncRolloutBatches[P, R]:
        steps = None if steps is None else checked_count(steps, "steps")
        return AsyncRolloutBatches(self, steps, checked_flag(auto_done, "auto_done"))

    async def get(self) -> Batch[P, R]:
        with SHORTENED:
            batch = await self._take("get()")
            if batch is None:
                raise self._end_error()
            return batch

    async def _take(self, what: str, steps: int | None = None) -> Batch[P, R] | None:
        """Return the next batch; ``None`` if there are no more, or so many were handed out.

        Raises:
            BaseException: what has ended the run.
        """
        core, waker = self._core, current_waker()
        if steps is not None and core.given_out >= steps:
            return None
        self._check_not_publishing(what, running_task())
        taker = Taker(Owner(waker.runner()))
        try:
            core.join(taker)
            await taker.gate.wait(waker, until_stop=True)
        except BaseException:
            core.leave(taker)
            raise
        return core.commit(taker)

    def publishing(
        self, weights: Any = ..., *, drain: Drain = False, steps: int | None = None
    ) -> AsyncPublishing:
        return AsyncPublishing(self, weights, checked_drain(drain), steps)

    async def publish(self, weights: Any = ..., *, steps: int | None = None) -> int:
        with SHORTENED:
            async with self.publishing(weights, steps=steps) as publication:
                pass
            return publication.version

    async def evaluate(
        self,
        prompts: Iterable[Any],
        generate: Any = None,
        *,
        group_size: int = 1,
        priority: bool = True,
    ) -> list[Group[Any, Any]]:
        with SHORTENED:
            core = self._core
            self._check_not_publishing("evaluate()", running_task())
            size = checked_count(group_size, "group_size", least=1)
            checked_flag(priority, "priority")
            listed = list(prompts)
            work = self._evaluation_work(generate)
            host: Any = None
            if core.has_started:
                await core.begun.wait(current_waker(), until_stop=True)
            if core.host is None:
                work = work or core.work
                host = new_host(core, work)
            evaluations: list[Evaluation] = []
            owner = Owner(current_waker().runner())
            async with nullcontext() if host is None else host:
                try:
                    for number, prompt in enumerate(listed):
                        evaluation = Evaluation(number, host, work, owner)
                        evaluations.append(evaluation)
                        core.evaluate(prompt, size, evaluation, priority)
                    for evaluation in evaluations:
                        await evaluation.ended.wait(current_waker(), until_stop=True)
                        if evaluation.error is not None:
                            raise evaluation.error
                finally:
                    core.withdraw(evaluations)
            return [evaluation.group for evaluation in evaluations if evaluation.group is not None]


class _RolloutSteps(Generic[P, R]):
    """What iterating over batches means, in either face."""

    def __init__(
        self, rollouts: RolloutQueueFace[P, R], steps: int | None, auto_done: bool
    ) -> None:
        self._steps = steps
        self._auto_done = auto_done
        self._face = rollouts
        self._last: Batch[P, R] | None = None

    def __repr__(self) -> str:
        return f"<batches of {self._face!r}>"

    def _end_last(self) -> None:
        """Mark the last batch done, if that is wanted."""
        last, self._last = self._last, None
        if last is not None and self._auto_done:
            last.done()


_NEXT: Final = "to ask for the next batch"


class AsyncRolloutBatches(_RolloutSteps[P, R]):
    """An async iterator over the batches of a `RolloutQueue`."""

    _face: RolloutQueue[P, R]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch[P, R]:
        with SHORTENED:
            self._end_last()
            batch = self._last = await self._face._take(_NEXT, self._steps)
            if batch is None:
                raise StopAsyncIteration
            return batch


class _Gate:
    """A block in which weights are published, in either face."""

    def __init__(
        self, rollouts: RolloutQueueMethods[Any, Any], weights: Any, drain: Any, steps: Any
    ) -> None:
        self._rollouts: RolloutQueueMethods[Any, Any] = rollouts
        self._core = rollouts._core
        self._weights = weights
        self._drain = drain
        self._steps = steps
        self._publisher: Publisher | None = None
        self._publication = Publication(0, 0)

    def _end(self, error: BaseException | None) -> None:
        """End the block. Only a block without an error publishes."""
        core, publisher = self._core, self._publisher
        assert publisher is not None
        version: int | None = None
        try:
            if error is None:
                if self._weights is not _UNSET:
                    core.policy.publish(self._weights)
                version = self._publication.version
        finally:
            core.end_publisher(publisher, version)


@refuse_block(
    "with",
    "this publishing() is awaited: write `async with rollouts.publishing():`, or in a plain script"
    " `with rollouts.sync.publishing():`",
)
class AsyncPublishing(_Gate):
    """The context manager of `RolloutQueue.publishing`."""

    _rollouts: RolloutQueue[Any, Any]

    async def __aenter__(self) -> Publication:
        with SHORTENED:
            core, waker = self._core, current_waker()
            self._rollouts._check_not_publishing("publishing()", running_task())
            publisher = self._publisher = Publisher(Owner(waker.runner()))
            try:
                core.begin_publisher(publisher)
                await publisher.gate.wait(waker, until_stop=True)
                self._publication = self._rollouts._publication(self._steps)
                core.pause(publisher, self._drain)
                if not publisher.closed.is_open:
                    await publisher.closed.wait(waker, until_stop=True)
                if self._drain != "no":
                    await publisher.drained.wait(waker, until_stop=True)
            except BaseException:
                core.end_publisher(publisher, None)
                raise
            return self._publication

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)


def checked_timeout(timeout: Any) -> float | None:
    return None if timeout is None else checked_seconds(timeout, "timeout")


class _Deadline:
    """How long a blocking call may wait, in all its waits together.

    Args:
        what: the call, for messages.
        timeout: seconds; ``None`` for no limit.
    """

    def __init__(self, what: str, timeout: Any) -> None:
        self._what = what
        self._timeout = checked_timeout(timeout)
        self._end = None if self._timeout is None else perf_counter() + self._timeout

    def wait(self, gate: Gate) -> None:
        """Wait until a gate is open.

        Raises:
            DeadlineExceededError: it was not in time.
        """
        left = None if self._end is None else max(0.0, self._end - perf_counter())
        if not gate.wait_blocking(left, current_scopes()):
            raise self._exceeded()

    async def run(self, body: Callable[[], Awaitable[R]]) -> R:
        """Await a call, in an event loop of its own.

        Raises:
            DeadlineExceededError: it has not ended in time, and was cancelled.
        """
        with anyio.move_on_after(self._timeout):
            return await body()
        raise self._exceeded()

    def _exceeded(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{self._what} has waited its timeout of {self._timeout:.4g} s"
        )


@refuse_block(
    "with",
    "a RolloutQueue has no block: write `with aioqueue.sync.Coordinator() as coord:` and"
    " `coord.start(rollouts.generate(function))`",
)
class BlockingRolloutQueue(RolloutQueueMethods[P, R]):
    """The blocking face of a `RolloutQueue`: ``rollouts.sync``.

    The same queue, for a trainer that is a plain script. A coroutine function generates in an event
    loop on a thread of its own, a plain function on threads::

        with aioqueue.sync.Coordinator() as coord:
            coord.start(rollouts.generate(generate))
            for batch in rollouts.sync.batches(steps=1000):
                train(batch.groups)
                with rollouts.sync.publishing():
                    engine.update(weights)

    A trainer that keeps the interpreter for itself, in one long call of C code say, keeps a
    generation in the same process from running. Take ``where="process"`` then.
    """

    _aio: RolloutQueue[P, R]
    _world = "sync"

    @property
    def policy(self) -> sync.Latest[Any]:
        """The blocking face of the newest weights that were published with ``weights``."""
        return self._core.policy.sync

    @property
    def aio(self) -> RolloutQueue[P, R]:
        """The async face of the same queue."""
        return self._aio

    @property
    def sync(self) -> Self:
        """The blocking face of the same queue. That is this face itself."""
        return self

    def batches(self, steps: int | None = None, *, auto_done: bool = True) -> RolloutBatches[P, R]:
        steps = None if steps is None else checked_count(steps, "steps")
        return RolloutBatches(self, steps, checked_flag(auto_done, "auto_done"))

    def get(self, *, timeout: float | None = None) -> Batch[P, R]:
        with SHORTENED:
            batch = self._take("get()", timeout=timeout)
            if batch is None:
                raise self._end_error()
            return batch

    def _take(
        self, what: str, steps: int | None = None, timeout: float | None = None
    ) -> Batch[P, R] | None:
        """Return the next batch; ``None`` if there are no more, or so many were handed out.

        Raises:
            BaseException: what has ended the run.
        """
        core = self._core
        deadline = _Deadline(f"{what} of {core}", timeout)
        if steps is not None and core.given_out >= steps:
            return None
        self._check_may_block(what)
        self._check_not_publishing(what, threading.current_thread())
        taker = Taker(Owner(threading.current_thread()))
        try:
            core.join(taker)
            deadline.wait(taker.gate)
        except BaseException:
            core.leave(taker)
            raise
        return core.commit(taker)

    def _check_may_block(self, what: str) -> None:
        if in_event_loop():
            raise RuntimeError(
                f"{what} would have to wait, and this thread's event loop is running: use the async"
                " face, without `.sync`, here"
            )

    def publishing(
        self,
        weights: Any = ...,
        *,
        drain: Drain = False,
        steps: int | None = None,
        timeout: float | None = None,
    ) -> Publishing:
        return Publishing(self, weights, checked_drain(drain), steps, checked_timeout(timeout))

    def publish(
        self, weights: Any = ..., *, steps: int | None = None, timeout: float | None = None
    ) -> int:
        with SHORTENED:
            with self.publishing(weights, steps=steps, timeout=timeout) as publication:
                pass
            return publication.version

    def evaluate(
        self,
        prompts: Iterable[Any],
        generate: Any = None,
        *,
        group_size: int = 1,
        priority: bool = True,
        timeout: float | None = None,
    ) -> list[Group[Any, Any]]:
        with SHORTENED:
            core = self._core
            deadline = _Deadline(f"evaluate() of {core}", timeout)
            self._check_may_block("evaluate()")
            self._check_not_publishing("evaluate()", threading.current_thread())
            size = checked_count(group_size, "group_size", least=1)
            checked_flag(priority, "priority")
            listed = list(prompts)
            work = self._evaluation_work(generate)
            if core.has_started:
                deadline.wait(core.begun)
            if core.host is None:
                evaluate = partial(
                    self._aio.evaluate, listed, generate, group_size=size, priority=priority
                )
                return anyio.run(deadline.run, evaluate)
            evaluations: list[Evaluation] = []
            owner = Owner(threading.current_thread())
            try:
                for number, prompt in enumerate(listed):
                    evaluation = Evaluation(number, None, work, owner)
                    evaluations.append(evaluation)
                    core.evaluate(prompt, size, evaluation, priority)
                for evaluation in evaluations:
                    deadline.wait(evaluation.ended)
                    if evaluation.error is not None:
                        raise evaluation.error
            finally:
                core.withdraw(evaluations)
            return [evaluation.group for evaluation in evaluations if evaluation.group is not None]


class RolloutBatches(_RolloutSteps[P, R]):
    """An iterator over the batches of a `RolloutQueue`."""

    _face: BlockingRolloutQueue[P, R]

    def __iter__(self) -> Iterator[Batch[P, R]]:
        return self

    def __next__(self) -> Batch[P, R]:
        with SHORTENED:
            self._end_last()
            batch = self._last = self._face._take(_NEXT, self._steps)
            if batch is None:
                raise StopIteration
            return batch


@refuse_block(
    "async with",
    "this publishing() blocks its thread: write `with rollouts.sync.publishing():`, or in a"
    " coroutine `async with rollouts.publishing():`",
)
class Publishing(_Gate):
    """The context manager of ``rollouts.sync.publishing``."""

    _rollouts: BlockingRolloutQueue[Any, Any]

    def __init__(
        self,
        rollouts: BlockingRolloutQueue[Any, Any],
        weights: Any,
        drain: Any,
        steps: Any,
        timeout: float | None,
    ) -> None:
        super().__init__(rollouts, weights, drain, steps)
        self._timeout = timeout

    def __enter__(self) -> Publication:
        with SHORTENED:
            core, thread = self._core, threading.current_thread()
            deadline = _Deadline(f"publishing() of {core}", self._timeout)
            self._rollouts._check_may_block("publishing()")
            self._rollouts._check_not_publishing("publishing()", thread)
            publisher = self._publisher = Publisher(Owner(thread))
            try:
                core.begin_publisher(publisher)
                deadline.wait(publisher.gate)
                self._publication = self._rollouts._publication(self._steps)
                core.pause(publisher, self._drain)
                deadline.wait(publisher.closed)
                if self._drain != "no":
                    deadline.wait(publisher.drained)
            except BaseException:
                core.end_publisher(publisher, None)
                raise
            return self._publication

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(error)


describe(RolloutQueue, "aio")
describe(BlockingRolloutQueue, "sync")
name_methods(RolloutQueueFace, "RolloutQueue")
for _cls in (RolloutQueue, BlockingRolloutQueue):
    hint_methods(_cls, "rollouts", ("generate", "set"))
    hint_methods(
        _cls, "rollouts in training", ("batches", "evaluate", "get", "publish", "publishing")
    )
del _cls
