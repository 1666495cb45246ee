"""`DataLoader`: the arguments and batches of PyTorch's own, with different workers."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch.utils import data

from aioqueue import Explanation, InvalidArgumentError, explain
from aioqueue.base.arguments import check_version, checked_flag
from aioqueue.errors import counted
from aioqueue.inputs import Quarantined
from aioqueue.system.forks import PROCESS, inherited_error
from aioqueue.telemetry import Monitor, Watch
from aioqueue.torch.epoch_iterator import IteratorPlan, LoaderIterator, LoaderProgress, iterator_of
from aioqueue.torch.fetchers import Recipe
from aioqueue.torch.loader_metrics import LoaderRecord, LoaderStatistics
from aioqueue.torch.loader_state import (
    VERSION,
    LoaderKind,
    LoaderPosition,
    as_text,
    field_of,
    from_text,
    generators_as_dict,
    generators_from_dict,
    samplers_in,
)
from aioqueue.torch.loader_workers import Pin
from aioqueue.torch.sampler_state import states_of_samplers, with_counters
from aioqueue.torch.worker_init import WorkerInit
from aioqueue.torch.worker_streams import Where

T_co = TypeVar("T_co", covariant=True)


class _MapStyle(Protocol[T_co]):
    """The datasets that type checkers accept: a `Dataset` of any kind, a list and so on."""

    def __getitem__(self, index: Any, /) -> T_co: ...


class DataLoader(data.DataLoader[T_co]):
    """`torch.utils.data.DataLoader` with threads as workers, and with resumption.

    It takes the same arguments, rejects invalid ones with the same errors, draws the same numbers
    from the same generator, and returns the same batches in the same order. The differences are:

    * Workers are threads, unless you pass ``where="process"``. Each has a writable copy of the
      dataset that shares large data. A map-style dataset is copied as by `copy.copy`, and so are
      the datasets that it holds in attributes and in lists, tuples and dicts there. An iterable
      dataset is copied by `copy.deepcopy`, except for arrays and tensors.
      `torch.utils.data.get_worker_info` works in every worker thread, and has random generators for
      it (``rng``); all threads of a process share the global generators.
    * A worker's failure is raised when you ask for the batch that failed, and ends the epoch. If
      several workers have failed by then, it is one `ExceptionGroup` of all failures.
    * `state_dict` and `load_state_dict` save and resume it in the middle of an epoch.

    Args:
        dataset: a map-style dataset or a `torch.utils.data.IterableDataset`.
        batch_size: number of samples per batch; ``None`` for single samples.
        shuffle: whether to reorder a map-style dataset in each epoch.
        sampler: yields the indices, instead of ``shuffle``.
        batch_sampler: yields lists of indices, instead of all other batching arguments.
        num_workers: number of workers; 0 makes each batch in the calling thread, on demand.
        collate_fn: makes a batch from a list of samples; ``None`` for PyTorch's `default_collate`,
            or `default_convert` if ``batch_size`` is ``None``.
        pin_memory: whether to copy tensors to pinned memory, if there is an accelerator.
        drop_last: whether to drop a smaller last batch.
        timeout: most seconds to wait for a batch of the workers; 0 for no limit.
        worker_init_fn: called by each worker with its number, before anything else. On threads the
            calls run one at a time, and changes to the global random generators are undone.
        multiprocessing_context: validated as in PyTorch, and ignored: aioqueue starts processes its
            own way, which never forks the program.
        generator: the source of ``shuffle`` and of the workers' seeds; ``None`` for the global one.
        prefetch_factor: how many batches each worker makes ahead; ``None`` for 2.
        persistent_workers: whether workers stay alive between epochs.
        pin_memory_device: ignored, as in PyTorch.
        in_order: whether to keep the sampler's order; otherwise batches come as they are finished.
        where: ``"thread"``, for datasets that release the GIL; or ``"process"``, for datasets that
            hold it, which must be picklable.
        replay: whether loading a state rereads an iterable dataset without ``state_dict`` from its
            start.
        raise_single: whether to raise a single failure as itself, as PyTorch does, so that an
            ``except KeyError`` works. ``False`` raises an `ExceptionGroup` in any case.
        on_error: what to do if a sample of a map-style dataset fails: ``"stop"`` raises; ``"skip"``
            leaves it out of its batch, which is smaller then. A batch without samples is left out.
        max_failures: how many samples may be skipped before it fails after all: an int, or a share
            of all samples in (0, 1), as for `aioqueue.inputs.prepare`. ``None`` for no limit.
        quarantine: a file for skipped samples, with one JSON object per line; ``None`` keeps them
            in memory.

    Raises:
        ValueError: the arguments contradict each other, as in PyTorch.
        InvalidArgumentError: (a `ValueError`) ``where``, ``replay``, ``raise_single`` or
            ``generator`` is not as described.
        TypeError: the dataset is a DataPipe, which PyTorch no longer develops.
    """

    def __init__(
        self,
        dataset: _MapStyle[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        where: Where = "thread",
        replay: bool = False,
        raise_single: bool = True,
        on_error: Literal["stop", "skip"] = "stop",
        max_failures: float | None = None,
        quarantine: str | PathLike[str] | None = None,
    ) -> None:
        if where not in ("thread", "process"):
            raise InvalidArgumentError(f"where: got {where!r}; expected 'thread' or 'process'")
        checked_flag(replay, "replay")
        if not isinstance(generator, torch.Generator | None):
            raise InvalidArgumentError(
                f"generator: got {generator!r:.60}; expected a torch.Generator, such as"
                " torch.Generator().manual_seed(7), or None"
            )
        if isinstance(dataset, data.IterDataPipe | data.MapDataPipe):
            raise TypeError(
                f"dataset: got a DataPipe ({type(dataset).__name__}); expected a Dataset or an"
                " IterableDataset (torch.utils.data.DataLoader takes DataPipes)"
            )
        super().__init__(
            cast("Any", dataset),
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.where: Where = where
        self.replay = replay
        self.raise_single: bool = checked_flag(raise_single, "raise_single")
        self._iterator: LoaderIterator | None = None
        self._progress = LoaderProgress()
        self._worker_init = WorkerInit()
        self._record = LoaderRecord(on_error, max_failures, quarantine)
        self._latest: weakref.ref[LoaderIterator] | None = None
        if self._record.skips and isinstance(dataset, data.IterableDataset):
            raise InvalidArgumentError(
                f"on_error: got {on_error!r} for an iterable dataset, which cannot continue behind"
                " a failure; expected 'stop', or a map-style dataset"
            )

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch this loader, and find what makes it slow.

        The workers are one stage, whose function is the dataset. All epochs count, from the call
        on. The loop's own work and its waits count, too.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when batches are
                late.

        Returns:
            A monitor, as for `aioqueue.inputs.Pipeline.monitor`: ``verdict()`` says what limits the
            loop, and what to change.
        """
        return Monitor(self, log=log)

    def _watched(self) -> Watch:
        self._record.watch.watch_steps()
        return self._record.watch

    def statistics(self) -> LoaderStatistics:
        """Return counts of batches, samples and workers. Any thread may call it."""
        iterator = self._iterator if self._latest is None else self._latest()
        load = (0, 0, 0, 0) if iterator is None else iterator.load()
        return self._record.statistics(*load)

    def explain(self) -> Explanation:
        """Explain which callers wait, for what and since when; see `aioqueue.explain`."""
        return explain()

    @property
    def quarantine(self) -> list[Quarantined]:
        """The samples that were skipped so far: ``item`` is the index. They are those of batches
        that the loop has received, or that had no other samples.

        Raises:
            OSError: the quarantine file cannot be read.
            DataLossError: records are no longer in the file.
        """
        return self._record.quarantine()

    def __repr__(self) -> str:
        size = self.batch_size
        gives = "single samples" if self.batch_sampler is None else "batches of its batch_sampler"
        gives = gives if size is None else f"batches of {size}"
        workers = f"{counted(self.num_workers, 'worker')}, where={self.where!r}"
        workers = workers if self.num_workers else "no workers"
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{name} of a {type(self.dataset).__name__}: {gives}, {workers}>"

    def __iter__(self) -> LoaderIterator:
        live_iterator = self._live_iterator()
        if live_iterator is not None:
            live_iterator.reported_length = self._reported_length()
            live_iterator.restart()
            return live_iterator
        iterator = self._get_iterator()
        if self.persistent_workers and self.num_workers:
            self._iterator = iterator
        self._latest = weakref.ref(iterator)
        return iterator

    def _live_iterator(self) -> LoaderIterator | None:
        """The iterator whose workers stay alive for the next epoch."""
        is_wanted = (
            self.persistent_workers and self.num_workers
        )  # num_workers may have been set to 0
        if not is_wanted or self._iterator is None or self._iterator.is_closed:
            return None
        if self._iterator.is_of_another_process:
            return None
        return self._iterator

    def _get_iterator(self) -> LoaderIterator:
        self.check_worker_number_rationality()
        return iterator_of(self._plan(), self._progress)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader: after the last batch returned by its latest iterator.

        You can call it at any time, from any thread. It takes microseconds, since it asks no
        worker. Batches that were prepared and not returned are prepared again.

        Returns:
            Plain JSON types, except for the own states of an iterable dataset or a sampler.

        Raises:
            TypeError: the dataset is iterable without ``state_dict``, and ``replay`` is false.
        """
        if self._progress.process not in (None, PROCESS.number):
            raise inherited_error("the epoch of this DataLoader")
        position = self._progress.resume or self._progress.position
        epoch = None
        if position is not None and not position.is_over:
            if position.is_unknown() and not self.replay:
                raise TypeError(
                    f"dataset: got a {type(self.dataset).__name__}, which has no resumable state;"
                    " expected one with state_dict() and load_state_dict(state), or whose iterator"
                    " has them; or pass replay=True to read it again from its start"
                )
            epoch = position.as_dict()
            if position is self._progress.position:
                counters = self._progress.counters
                counters.find_changed(self._index_sampler)
                epoch["samplers"] = with_counters(position.samplers, counters.values_at_start())
        return {
            "version": VERSION,
            **self._fingerprint(),
            "random_state": (
                None if self.generator is None else as_text(self.generator.get_state())
            ),
            "base_seed": self._kept_seed() if epoch is None else None,
            "samplers": self._states_of_samplers() if epoch is None else [],
            "kind": (self._progress.kind or self._kind()).as_dict(),
            "generators": self._states_of_generators(is_within=epoch is not None),
            "epoch": epoch,
        }

    def _states_of_samplers(self) -> list[Any]:
        """Return the samplers' own states between two epochs."""
        kept = self._progress.samplers
        if kept is not None:
            return kept
        states = states_of_samplers(self._index_sampler, self.generator)
        return with_counters(states, self._progress.counters.current_values(self._index_sampler))

    def _states_of_generators(self, *, is_within: bool) -> dict[str, Any] | None:
        """Return the states of the workers' generators; ``None`` if new ones begin anyway.

        Args:
            is_within: whether the position is within an epoch.
        """
        progress = self._progress
        generators = dict(progress.generators)
        if progress.position is not None and progress.resume is None and not generators:
            generators = dict(progress.position.generators)
        lives_on = is_within or self._kind().is_persistent
        if not lives_on or not generators:
            return None
        return generators_as_dict(self.num_workers, generators)

    def _kept_seed(self) -> int | None:
        """The base seed of workers that stay alive for the next epoch."""
        progress = self._progress
        if progress.kind is not None:
            return progress.kept_seed() if progress.kind.is_persistent else None
        if self._live_iterator() is None or progress.position is None:
            return progress.base_seed
        return progress.position.base_seed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict` in the next ``for`` loop over this loader.

        Its first batch is the one after the last that was returned, or the first of the next epoch
        if that epoch was over. The number of workers may differ, except for an iterable dataset;
        the kind of worker may differ, too. The loader's own ``generator`` resumes from its saved
        state; the global one does not change. A sampler gets back its own state (``state_dict`` and
        ``load_state_dict``) or the states of generators in its attributes, and plain attributes by
        which it counts epochs.

        Args:
            state: the result of `state_dict`.

        Raises:
            InvalidArgumentError: it is not such a state, or that of a different loader; or (when
                you iterate) the sampler yields another order than before. The state stays loaded:
                once the sampler has its former settings, the next ``for`` resumes.
        """
        check_version(field_of(state, "version", object), VERSION, "state")
        for name, ours in self._fingerprint().items():
            theirs = field_of(state, name, object)
            if theirs != ours:
                raise InvalidArgumentError(
                    f"state: got one of a loader with {name} {theirs!r}; expected that of this"
                    f" loader, {ours!r}"
                )
        epoch, random = field_of(state, "epoch", object), field_of(state, "random_state", object)
        base_seed = field_of(state, "base_seed", int | None)
        samplers = samplers_in(state)
        # Of a state from before it was saved, nothing is known.
        kind = LoaderKind.from_dict(state["kind"]) if "kind" in state else self._kind()
        resume = None if epoch is None else LoaderPosition.from_dict(epoch)
        generators = generators_from_dict(state.get("generators"), self.num_workers)
        if resume is not None:
            self._check_fit(resume)
        if random is not None and self.generator is not None:
            self.generator.set_state(from_text(random))
        if self._iterator is not None and not self._iterator.is_of_another_process:
            self._iterator.close()  # its workers started from another state
            self._iterator = None
        self._progress = LoaderProgress(
            resume=resume,
            base_seed=base_seed,
            samplers=samplers,
            generators=generators if kind == self._kind() else {},
            kind=None if kind == self._kind() else kind,
        )

    def _kind(self) -> LoaderKind:
        """How this loader draws, unless it resumes another kind."""
        has_workers = bool(self.num_workers)
        return LoaderKind(has_workers, has_workers and bool(self.persistent_workers))

    def _fingerprint(self) -> dict[str, Any]:
        """Return what must agree between a state and the loader."""
        is_iterable = isinstance(self.dataset, data.IterableDataset)
        return {
            "is_iterable": is_iterable,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "length": None if is_iterable else _length_of(self.dataset),
            "has_generator": self.generator is not None,
            "num_workers": self.num_workers if is_iterable else None,
        }

    def _check_fit(self, position: LoaderPosition) -> None:
        if position.is_unknown() and not self.replay:
            raise InvalidArgumentError(
                "state: got one without the state of the dataset, saved with replay=True; expected"
                " one with it, or pass replay=True to this loader too"
            )

    def _plan(self) -> IteratorPlan:
        recipe = Recipe(
            self.dataset,
            isinstance(self.dataset, data.IterableDataset),
            self.batch_sampler is not None,
            self.collate_fn,
            self.drop_last,
            self._record.skips,
        )
        return IteratorPlan(
            recipe=recipe,
            index_sampler=self.batch_sampler if recipe.is_batched else self.sampler,
            workers=self.num_workers,
            where=self.where,
            prefetch=self.prefetch_factor or 0,
            timeout=self.timeout,
            init_fn=self.worker_init_fn,
            worker_init=self._worker_init,
            generator=self.generator,
            is_persistent=self.persistent_workers,
            in_order=self.in_order,
            pin=self._pin() if self.pin_memory else None,
            raise_single=self.raise_single,
            record=self._record,
            reported_length=self._reported_length(),
        )

    def _reported_length(self) -> int | None:
        is_iterable = isinstance(self.dataset, data.IterableDataset)
        return self._IterableDataset_len_called if is_iterable else None

    def _pin(self) -> Pin | None:
        """Return how to pin memory, if possible; emit PyTorch's warnings if not."""
        if self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated and has no effect: memory is pinned for the"
                " current accelerator",
                stacklevel=5,
            )
        if not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found: memory is not"
                " pinned",
                stacklevel=5,
            )
            return None
        if torch.accelerator.current_accelerator().type == "mps":
            warnings.warn(
                "'pin_memory' argument is set as true but not supported on MPS: memory is not"
                " pinned",
                stacklevel=5,
            )
            return None
        return Pin(torch.accelerator.current_device_index())


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None  # only a sampler of the user's own knows
