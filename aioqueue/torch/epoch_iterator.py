"""Going through an epoch: indices from the sampler to the workers, batches from them in order.

All that draws random numbers, and every call of the sampler, happens in the thread that iterates,
at the moments at which PyTorch's loader does it: when an iterator is made it gives each worker its
first tasks, and one more whenever a batch has come. So generators are left as it leaves them.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

import torch

from aioqueue import DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from aioqueue.forks import PROCESS, begun_elsewhere
from aioqueue.locks import holding
from aioqueue.torch.collate import BatchMemory
from aioqueue.torch.fetch import DatasetStart, DatasetState, Exhausted, Recipe, fetcher_of
from aioqueue.torch.loader_state import (
    Counters,
    LoaderPosition,
    mark_of,
    restore_samplers,
    states_of_samplers,
)
from aioqueue.torch.loader_workers import (
    Begin,
    Pin,
    ProcessWorker,
    SharedWorkerState,
    Streams,
    Task,
    TaskReply,
    ThreadWorker,
    Where,
    pickled,
)
from aioqueue.torch.worker_info import Initialising
from aioqueue.waiting.caller import in_event_loop

__all__ = ("LoaderIterator", "LoaderPlace", "Plan", "iterator_of")

_NOTHING: Final = object()

_Worker = Callable[[Begin | Task], TaskReply | None]


@dataclass(frozen=True)
class Plan:
    """What an iterator is to do: the arguments of the loader when it was made."""

    recipe: Recipe
    index_sampler: Any
    workers: int
    where: Where
    prefetch: int
    timeout: float
    init_fn: Callable[[int], object] | None
    initialising: Initialising
    generator: Any
    is_persistent: bool
    in_order: bool
    pin: Pin | None
    told_length: int | None
    """What ``len`` of an iterable dataset was when that of the loader was asked for."""


@dataclass
class LoaderPlace:
    """Where a loader is, shared by it and its iterators."""

    position: LoaderPosition | None = None
    """Of the epoch that was begun last; ``None`` before the first."""
    resume: LoaderPosition | None = None
    """Where the next epoch is to go on."""
    base_seed: int | None = None
    """What the next epoch is to make its workers' seeds of, instead of drawing it: the workers of
    the loader that was saved between two epochs lived on."""
    process: int | None = None
    """That of the epoch that was begun last."""
    samplers: list[Any] | None = None
    """What the samplers are to be given before the next epoch; see `loader_state`."""
    counters: Counters = field(default_factory=Counters)
    """By what the samplers count."""


class _Drawn(NamedTuple):
    """One index of the sampler."""

    number: int
    index: Any
    mark: int


class _Failed(NamedTuple):
    """What the sampler has raised, in the place of an index."""

    error: Exception


class LoaderIterator(ABC, Iterator[Any]):
    """An iterator over the batches of one epoch; ``iter`` of a `DataLoader` makes it.

    Several threads may take from it at once; each batch goes to one of them. In a fork of the
    process it refuses to go on.

    When the loop is left, or the iterator is dropped, its workers are stopped at once: idle ones
    end then, others after the batch that they are making. `close` waits for that.
    """

    def __init__(self, plan: Plan, place: LoaderPlace) -> None:
        self._plan = plan
        self._place = place
        self._turn = threading.RLock()  # several threads may take from it
        self._is_closed = False
        self._process = PROCESS.number
        self.told_length = plan.told_length
        self._base_seed = 0
        self._begin_epoch(is_first=True)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", over" if self._position.is_over else ""
        dataset = type(self._plan.recipe.dataset).__name__
        return f"<aioqueue.torch.LoaderIterator of a {dataset}: handed out {self._yielded}{state}>"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """How many indices, or lists of them, the sampler gives."""
        return len(self._plan.index_sampler)

    def __next__(self) -> Any:
        self._check_process()
        name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        with torch.autograd.profiler.record_function(name):
            batch = holding(self._turn, self._taken_next)
        self._count()
        return batch

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: its workers are here")

    def _taken_next(self) -> Any:
        if self._is_closed or self._position.is_over:
            raise StopIteration
        batch = self._next_batch()
        self._yielded += 1
        return batch

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process is a fork of the one that made it."""
        return self._process != PROCESS.number

    def _check_process(self) -> None:
        if self.is_of_another_process:
            raise begun_elsewhere("this iterator of a DataLoader")

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing more to come, in this epoch or another."""
        return self._is_closed

    def restart(self) -> None:
        """Begin another epoch with the same workers; what is left of the one before is dropped.

        If one of them has failed in that, all are new ones.
        """
        self._begin_epoch(is_first=False)

    @abstractmethod
    def close(self) -> None:
        """Stop the workers, and wait until they have ended: 5 seconds at most.

        Nothing is kept of what they have made, and generators of an iterable dataset are closed.
        What they have failed with, in batches that nobody has asked for, is not raised.
        """

    @abstractmethod
    def _next_batch(self) -> Any:
        """The next batch, or `StopIteration`."""

    def _begin_epoch(self, *, is_first: bool) -> None:
        """Draw what an epoch draws at its beginning, in PyTorch's order."""
        plan, resume, kept_seed = self._plan, self._place.resume, self._place.base_seed
        draws_seed = (is_first and kept_seed is None) if resume is None else resume.is_first
        if resume is not None:
            kept_seed = resume.base_seed
        if kept_seed is not None:
            self._base_seed = kept_seed
        samplers = self._place.samplers if resume is None else resume.samplers
        if samplers:
            restore_samplers(plan.index_sampler, plan.generator, samplers)
        self._place.counters.begin(plan.index_sampler, samplers or [])
        with _DrawingFrom(plan.generator, None if resume is None else resume.random):
            random = _random_state(plan.generator)
            if resume is None:
                samplers = states_of_samplers(plan.index_sampler, plan.generator)
            indices = iter(plan.index_sampler)
            if draws_seed:
                self._base_seed = _drawn_seed(plan.generator)
            if draws_seed and plan.workers:
                # PyTorch asks the sampler twice if there are workers; one that draws at once from
                # the generator is then by one order further.
                indices = iter(plan.index_sampler)
            if resume is None:
                starts = [DatasetStart()] * max(1, plan.workers) if plan.recipe.is_iterable else []
                resume = LoaderPosition(random, self._base_seed, draws_seed, starts)
                resume.samplers = samplers or []
            elif not plan.recipe.is_iterable:
                indices = _after(indices, resume, peeks=plan.generator is None)
        self._indices = indices
        self._number = 0 if plan.recipe.is_iterable else resume.batches
        self._position = resume
        self._yielded = 0

    def _has_begun(self) -> None:
        """The epoch goes on from where it was to; until then a resume can be tried again."""
        place = self._place
        place.position, place.resume = self._position, None
        place.base_seed = place.samplers = None
        place.process = self._process

    def _draw(self) -> _Drawn | None:
        """The next index of the sampler; ``None`` if there are no more."""
        while True:
            index = next(self._indices, _NOTHING)
            if index is _NOTHING:
                self._place.counters.look(self._plan.index_sampler)
                return None
            number, self._number = self._number, self._number + 1
            if number >= self._position.batches and number not in self._position.beyond:
                return _Drawn(number, index, self._mark_of(index))

    def _mark_of(self, index: Any) -> int:
        if self._plan.recipe.is_iterable:
            return 0
        return mark_of(index)

    def _handed_out(self, drawn: _Drawn, worker: int, standing: DatasetState | None) -> None:
        if standing is not None:
            self._position.handed_out_by(worker, standing)
        else:
            self._position.handed_out(drawn.number, drawn.mark)

    def _count(self) -> None:
        plan, told = self._plan, self.told_length
        if told is None or self._yielded <= told:
            return
        hint = ""
        if plan.workers:
            hint = " Its workers may not split it: see torch.utils.data.get_worker_info."
        warnings.warn(
            f"Length of IterableDataset {plan.recipe.dataset} was reported to be {told} (when"
            f" len(dataloader) was asked for), but {self._yielded} have been fetched.{hint}",
            stacklevel=3,
        )


class _SerialIterator(LoaderIterator):
    """Makes each batch when it is asked for, in the thread that asks: ``num_workers=0``."""

    def __init__(self, plan: Plan, place: LoaderPlace) -> None:
        if plan.timeout:
            raise AssertionError(f"timeout: got {plan.timeout}; expected 0 with num_workers=0")
        super().__init__(plan, place)
        starts = self._position.starts
        start = starts[0] if starts else DatasetStart()
        self._fetcher = fetcher_of(plan.recipe, start, BatchMemory())
        self._has_begun()

    def close(self) -> None:
        """Give no more batches, and close what the dataset has open for them.

        Raises:
            Exception: what a generator of the dataset has raised when it was closed.
        """
        self._check_process()
        self._is_closed = True
        self._fetcher.close()

    def _next_batch(self) -> Any:
        drawn = self._draw()
        try:
            if drawn is None:
                raise Exhausted
            batch = self._fetcher.fetch(drawn.index)
        except Exhausted:
            self._position.is_over = True
            raise StopIteration from None
        if self._plan.pin is not None:
            batch = self._plan.pin(batch)
        self._handed_out(drawn, 0, self._fetcher.standing())
        return batch


class _WorkersIterator(LoaderIterator):
    """Has batches made by workers, ahead of when they are asked for."""

    def __init__(self, plan: Plan, place: LoaderPlace) -> None:
        if plan.prefetch <= 0:
            raise AssertionError(
                f"prefetch_factor: got {plan.prefetch}; expected at least 1 with workers"
            )
        self._epoch = 0
        super().__init__(plan, place)
        self._memory = BatchMemory(plan.workers)
        self._start_workers()
        self._begin_tasks()
        self._has_begun()

    def restart(self) -> None:
        try:
            if not self._has_dropped_the_rest():
                self._stop_workers()
                self._streams.join()
                self._start_workers()
            super().restart()
            self._begin_tasks()
            self._has_begun()
        except BaseException as error:
            self._leave(error)
            raise

    def close(self) -> None:
        self._check_process()
        self._is_closed = True
        self._streams.stop()
        self._streams.join()
        self._streams.let_go()

    def _start_workers(self) -> None:
        workers = _workers_of(self._plan, self._base_seed, self._memory)
        self._waited_for = [] if self._plan.init_fn is None else _threads_among(workers)
        self._streams = _streams_of(self._plan, workers)
        # Not `__del__`: it would run in a half-made object, and may not see what it needs.
        self._stop_workers = weakref.finalize(self, self._streams.stop)
        self._stop_workers.atexit = False

    def _has_dropped_the_rest(self) -> bool:
        """Wait for the batches of the last epoch that nobody has asked for: workers make them
        before those of another one. Whether no worker has ended with a failure in them."""
        try:
            for worker in range(self._plan.workers):
                while self._loads[worker]:
                    self._loads[self._receive(worker).worker] -= 1
        except OutOfRangeError:
            return False
        return True

    def _begin_tasks(self) -> None:
        plan, position = self._plan, self._position
        self._epoch += 1
        self._ended = set(position.ended)
        self._tasks: deque[tuple[int, _Drawn]] = deque()
        self._loads = [0] * plan.workers
        self._sampler_failure: Exception | None = None
        self._indices = _until_failure(self._indices)
        turn = position.turn if plan.recipe.is_iterable else position.batches % plan.workers
        self._turns: Iterator[int] = itertools.cycle([*range(turn, plan.workers), *range(turn)])
        for worker in range(plan.workers):
            if worker not in self._ended:
                start = position.starts[worker] if position.starts else DatasetStart()
                self._streams.send(worker, Begin(self._epoch, start))
        self._wait_for_init_fn()
        for _ in range(plan.prefetch * plan.workers):
            self._assign_next()

    def _wait_for_init_fn(self) -> None:
        """It may use the program's generators, from which the sampler is to draw only then."""
        for number, worker in enumerate(self._waited_for):
            if number not in self._ended:
                worker.wait_until_set_up()

    def _assign_next(self) -> None:
        """Give one more task to a worker, if there is one of both.

        What the sampler raises is kept until the batches before that have been handed out.
        """
        if self._sampler_failure is not None:
            return
        drawn = self._draw()
        if drawn is not None and isinstance(drawn.index, _Failed):
            self._sampler_failure = drawn.index.error
            return
        worker = None if drawn is None else self._worker_with_room()
        if drawn is not None and worker is not None:
            self._loads[worker] += 1
            self._tasks.append((worker, drawn))
            self._streams.send(worker, Task(self._epoch, drawn.number, drawn.index))

    def _worker_with_room(self) -> int | None:
        """The worker whose turn it is; where the order is not kept, of those that have room."""
        plan = self._plan
        for _ in range(plan.workers):
            worker = next(self._turns)
            if worker in self._ended:
                continue
            share = plan.prefetch * plan.workers // (plan.workers - len(self._ended))
            if plan.in_order or self._loads[worker] < share:
                return worker
        return None

    def _next_batch(self) -> Any:
        try:
            while self._tasks:
                worker, drawn = self._tasks[0]
                if worker in self._ended and self._plan.in_order:
                    self._tasks.popleft()  # what it answers is not waited for
                    continue
                reply = self._receive(worker)
                drawn = self._taken(reply)
                if not reply.has_ended:
                    batch = self._streams.batch_of(reply)
                    self._handed_out(drawn, reply.worker, reply.standing)
                    return batch
        except OutOfRangeError:
            pass
        except BaseException as error:
            self._leave(error)
            raise
        else:
            self._end()
            raise StopIteration
        self._fail(worker)  # here, where the end of a queue of ours is no part of the failure
        raise StopIteration

    def _taken(self, reply: TaskReply) -> _Drawn:
        """Note that a reply has come, and have one more batch made; returns what it answers."""
        if self._plan.in_order:
            _, drawn = self._tasks.popleft()
        else:
            place = [worker for worker, _ in self._tasks].index(reply.worker)
            _, drawn = self._tasks[place]
            del self._tasks[place]
        self._loads[reply.worker] -= 1
        if reply.has_ended:
            self._ended.add(reply.worker)
            self._position.ended.add(reply.worker)
        self._assign_next()
        return drawn

    def _receive(self, worker: int) -> TaskReply:
        """Wait for the next reply of a worker.

        Raises:
            OutOfRangeError: it has ended.
            RuntimeError: it takes longer than the timeout of the loader; or an event loop is
                running here.
        """
        timeout = self._plan.timeout or None
        began = monotonic()
        try:
            return self._streams.receive(worker, timeout)
        except DeadlineExceededError as error:
            if timeout is None or monotonic() - began < timeout:
                raise  # of a `CancelScope` around us
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from error
        except RuntimeError as error:
            if type(error) is not RuntimeError or not in_event_loop():
                raise  # as in a fork, which has none of the workers
            raise RuntimeError(
                "the next batch of a DataLoader would have to be waited for, and this thread's"
                " event loop is running: go through the loader in a thread, as by `await"
                " asyncio.to_thread(train, loader)`; or use a Pipeline of aioqueue.inputs, by"
                " `async for`"
            ) from None

    def _fail(self, worker: int) -> None:
        """A worker has ended: raise what has failed."""
        self._is_closed = True
        try:
            self._streams.fail(worker)
        finally:
            self._streams.let_go()

    def _leave(self, error: BaseException) -> None:
        """Ctrl-C stops all at once, whatever the workers are doing."""
        if not isinstance(error, Exception):
            self._stop()

    def _stop(self) -> None:
        self._is_closed = True
        self._streams.stop()

    def _end(self) -> None:
        """All has been handed out that there is."""
        if self._sampler_failure is not None:
            self._stop()
            raise self._sampler_failure
        self._position.is_over = True
        self._memory.rest()
        if not self._plan.is_persistent:
            self._is_closed = True
            self._streams.end()


def iterator_of(plan: Plan, place: LoaderPlace) -> LoaderIterator:
    """An iterator that does what is planned."""
    return _WorkersIterator(plan, place) if plan.workers else _SerialIterator(plan, place)


def _workers_of(plan: Plan, base_seed: int, memory: BatchMemory) -> list[_Worker]:
    crew = SharedWorkerState(plan.recipe, plan.init_fn, plan.workers, base_seed)
    if plan.where == "process":
        payload = pickled(crew)
        return [ProcessWorker(number, payload) for number in range(plan.workers)]
    return [
        ThreadWorker(number, crew, plan.pin, memory, plan.initialising)
        for number in range(plan.workers)
    ]


def _threads_among(workers: list[_Worker]) -> list[ThreadWorker]:
    return [worker for worker in workers if isinstance(worker, ThreadWorker)]


def _streams_of(plan: Plan, workers: list[_Worker]) -> Streams:
    return Streams(
        workers,
        plan.where,
        in_order=plan.in_order,
        ahead=plan.prefetch * plan.workers,
        pin=plan.pin if plan.where == "process" else None,
    )


def _drawn_seed(generator: Any) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _random_state(generator: Any) -> Any:
    return torch.get_rng_state() if generator is None else generator.get_state()


class _DrawingFrom:
    """Draw as from a state of the generator that was saved.

    A generator of the loader's own goes on from there, unless that fails. The global one is left as
    it was: it is not for a loader to say where the rest of the program is in it.

    It is not a `contextlib.contextmanager`, which writes to the exceptions that leave it, as a
    sampler may raise them: not all take that.

    Args:
        generator: the loader's own; ``None`` for the global one.
        state: ``None`` to draw from where it is.
    """

    def __init__(self, generator: Any, state: Any) -> None:
        self._generator = generator
        self._state = state

    def __enter__(self) -> None:
        if self._state is not None:
            self._before = _random_state(self._generator)
            self._set(self._state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state is not None and (self._generator is None or error is not None):
            self._set(self._before)

    def _set(self, state: Any) -> None:
        if self._generator is None:
            torch.set_rng_state(state)
        else:
            self._generator.set_state(state)


def _after(indices: Iterator[Any], position: LoaderPosition, *, peeks: bool) -> Iterator[Any]:
    """The indices after those that were handed out.

    Args:
        indices: all of the epoch.
        position: where it was.
        peeks: take one more at once: a sampler draws its order when it is first asked.

    Raises:
        InvalidArgumentError: they were others.
    """
    again = LoaderPosition(None, 0, False, [])
    for number, index in enumerate(itertools.islice(indices, position.batches)):
        again.handed_out(number, mark_of(index))
    if (again.batches, again.order) != (position.batches, position.order):
        raise InvalidArgumentError(
            f"state: the sampler gives other indices than in the first {position.batches} batches"
            f" of the epoch that was saved, where it now gives {again.batches}; expected a sampler"
            " that depends on nothing but the generator, the dataset and what it is told (as"
            " DistributedSampler by set_epoch), or one with state_dict() and load_state_dict(state)"
        )
    return _peeked(indices) if peeks else indices


def _until_failure(indices: Iterator[Any]) -> Iterator[Any]:
    """What the sampler gives; once it has failed, that, for ever.

    This is a generator since its frame leads to no other. A failure that was caught by a method of
    the iterator would lead to it: whoever then left the loop would leave the workers running too.
    """
    try:
        while True:
            yield next(indices, _NOTHING)
    except Exception as error:
        failed = _Failed(error)
    while True:
        yield failed


def _peeked(indices: Iterator[Any]) -> Iterator[Any]:
    first = next(indices, _NOTHING)
    return indices if first is _NOTHING else itertools.chain([first], indices)
