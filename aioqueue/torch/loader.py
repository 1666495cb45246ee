"""`DataLoader`: PyTorch's own, as far as its arguments go; with other workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

import torch
from torch.utils import data

from aioqueue import InvalidArgumentError
from aioqueue.arguments import check_version, checked_flag, counted
from aioqueue.forks import PROCESS, begun_elsewhere
from aioqueue.torch.epoch_iterator import LoaderIterator, LoaderPlace, Plan, iterator_of
from aioqueue.torch.fetch import Recipe
from aioqueue.torch.loader_state import (
    VERSION,
    LoaderPosition,
    as_text,
    field_of,
    from_text,
    samplers_in,
    states_of_samplers,
    with_counters,
)
from aioqueue.torch.loader_workers import Pin, Where
from aioqueue.torch.worker_info import Initialising

__all__ = ("DataLoader",)

T_co = TypeVar("T_co", covariant=True)


class _MapStyle(Protocol[T_co]):
    """What type checkers take for a dataset: a `Dataset` of any kind, a list and the like."""

    def __getitem__(self, index: Any, /) -> T_co:
        """One of its items."""


class DataLoader(data.DataLoader[T_co]):
    """`torch.utils.data.DataLoader` with workers that are threads, and that can be resumed.

    It takes the same arguments, refuses the same ones by the same errors, draws the same numbers
    from the same generator, and gives the same batches in the same order. What differs:

    * Workers are threads, unless ``where="process"``. Each has a copy of the dataset that it can
      write to, but not of what is large. A map-style dataset is copied as by `copy.copy`, and so
      are the datasets that it holds, in attributes and in lists, tuples and dicts there; an
      iterable one is copied by `copy.deepcopy`, but for arrays and tensors.
      `torch.utils.data.get_worker_info` tells every thread which worker it is, and has random
      generators for it (``rng``); the global ones are shared by all threads of a process.
    * What workers fail with is raised where the batch is asked for that failed, as one
      `ExceptionGroup` of all failures, and ends the epoch.
    * `state_dict` and `load_state_dict` save and resume it in the middle of an epoch.

    Args:
        dataset: a map-style dataset or a `torch.utils.data.IterableDataset`.
        batch_size: how many samples a batch has; ``None`` gives single samples.
        shuffle: whether the order of a map-style dataset is another one in each epoch.
        sampler: gives the indices, instead of ``shuffle``.
        batch_sampler: gives lists of indices, instead of all that says how batches are made.
        num_workers: how many workers prepare batches; 0 for none: each batch is made when it is
            asked for, by who asks.
        collate_fn: makes a batch of a list of samples; ``None`` for PyTorch's `default_collate`, or
            `default_convert` if ``batch_size`` is ``None``.
        pin_memory: whether tensors are copied to pinned memory, if there is an accelerator.
        drop_last: whether a last batch is left out that would be smaller.
        timeout: seconds to wait at most for a batch of the workers; 0 waits for ever.
        worker_init_fn: called by each worker with its number, before anything else. On threads,
            one after the other, and what it does to the global random generators is undone.
        multiprocessing_context: checked as by PyTorch, and otherwise of no effect: processes are
            started in aioqueue's own way, which is never a fork of the program.
        generator: what ``shuffle`` draws from, and the seeds of the workers; ``None`` for the
            global one.
        prefetch_factor: how many batches each worker makes ahead; ``None`` for 2.
        persistent_workers: whether workers stay alive from one epoch to the next.
        pin_memory_device: without effect, as in PyTorch.
        in_order: whether batches come in the order of the sampler; else as they are made.
        where: what workers are: ``"thread"``, for datasets that release the GIL; or ``"process"``,
            for those that hold it, which have to be picklable.
        replay: whether an iterable dataset that has no ``state_dict`` is read again from its start
            to where it was, when a state is loaded.

    Raises:
        ValueError: arguments that do not go together, as by PyTorch.
        InvalidArgumentError: (a `ValueError`) ``where``, ``replay`` or ``generator`` is not as
            described.
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
        self._iterator: LoaderIterator | None = None
        self._place = LoaderPlace()
        self._initialising = Initialising()

    def __repr__(self) -> str:
        size = self.batch_size
        gives = "single samples" if self.batch_sampler is None else "batches of its batch_sampler"
        gives = gives if size is None else f"batches of {size}"
        workers = f"{counted(self.num_workers, 'worker')}, where={self.where!r}"
        workers = workers if self.num_workers else "no workers"
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{name} of a {type(self.dataset).__name__}: {gives}, {workers}>"

    def __iter__(self) -> LoaderIterator:
        living = self._living()
        if living is not None:
            living.told_length = self._told_length()
            living.restart()
            return living
        iterator = self._get_iterator()
        if self.persistent_workers and self.num_workers:
            self._iterator = iterator
        return iterator

    def _living(self) -> LoaderIterator | None:
        """The iterator whose workers live on to the next epoch."""
        is_wanted = self.persistent_workers and self.num_workers  # which may have become 0
        if not is_wanted or self._iterator is None or self._iterator.is_closed:
            return None
        if self._iterator.is_of_another_process:
            return None
        return self._iterator

    def _get_iterator(self) -> LoaderIterator:
        self.check_worker_number_rationality()
        return iterator_of(self._plan(), self._place)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: after the last batch handed out, by the iterator made last.

        It can be asked for at any time, from any thread, and costs microseconds: no worker is
        asked. What was prepared and not handed out will be prepared again.

        Returns:
            Plain types, as JSON knows them; but for what an iterable dataset, or a sampler with
            ``state_dict``, says of itself.

        Raises:
            TypeError: the dataset is iterable and has no ``state_dict``, and ``replay`` is not set.
        """
        if self._place.process not in (None, PROCESS.number):
            raise begun_elsewhere("the epoch of this DataLoader")
        position = self._place.resume or self._place.position
        epoch = None
        if position is not None and not position.is_over:
            if position.is_unknown() and not self.replay:
                raise TypeError(
                    f"dataset: got a {type(self.dataset).__name__}, which cannot say where it is;"
                    " expected one with state_dict() and load_state_dict(state), or whose iterator"
                    " has them; or pass replay=True to read it again from its start"
                )
            epoch = position.as_dict()
            if position is self._place.position:
                counters = self._place.counters
                counters.look(self._index_sampler)
                epoch["samplers"] = with_counters(position.samplers, counters.at_beginning())
        return {
            "version": VERSION,
            **self._fingerprint(),
            "random_state": (
                None if self.generator is None else as_text(self.generator.get_state())
            ),
            "base_seed": self._kept_seed() if epoch is None else None,
            "samplers": self._states_of_samplers() if epoch is None else [],
            "epoch": epoch,
        }

    def _states_of_samplers(self) -> list[Any]:
        """What samplers have of their own between two epochs."""
        kept = self._place.samplers
        if kept is not None:
            return kept
        states = states_of_samplers(self._index_sampler, self.generator)
        return with_counters(states, self._place.counters.now(self._index_sampler))

    def _kept_seed(self) -> int | None:
        """The base seed of workers that live on to the next epoch."""
        place = self._place
        if self._living() is None or place.position is None:
            return place.base_seed
        return place.position.base_seed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader was whose `state_dict` this is: in the next ``for`` over this one.

        Its first batch is the one after the last that was handed out; or, if that epoch was over,
        the first of the next epoch. The number of workers may be another, but for an iterable
        dataset, and so may be what they are. A ``generator`` of the loader goes on from where it
        was; the global one is left as it is. A sampler that has a state of its own (``state_dict``
        and ``load_state_dict``), or generators of its own as attributes, is given that of then, and
        so are numbers by which it counts its epochs: plain attributes that iterating it changes.

        Args:
            state: what `state_dict` has returned.

        Raises:
            InvalidArgumentError: it is no such state, or one of another loader; or (when the loader
                is iterated) the sampler gives another order than then. The state stays loaded: once
                the sampler is told what it was told then, the next ``for`` goes on.
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
        resume = None if epoch is None else LoaderPosition.from_dict(epoch)
        if resume is not None:
            self._check_fit(resume)
        if random is not None and self.generator is not None:
            self.generator.set_state(from_text(random))
        if self._iterator is not None and not self._iterator.is_of_another_process:
            self._iterator.close()  # its workers have begun from another state
            self._iterator = None
        self._place = LoaderPlace(resume=resume, base_seed=base_seed, samplers=samplers)

    def _fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a state to fit."""
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

    def _plan(self) -> Plan:
        recipe = Recipe(
            self.dataset,
            isinstance(self.dataset, data.IterableDataset),
            self.batch_sampler is not None,
            self.collate_fn,
            self.drop_last,
        )
        return Plan(
            recipe=recipe,
            index_sampler=self.batch_sampler if recipe.is_batched else self.sampler,
            workers=self.num_workers,
            where=self.where,
            prefetch=self.prefetch_factor or 0,
            timeout=self.timeout,
            init_fn=self.worker_init_fn,
            initialising=self._initialising,
            generator=self.generator,
            is_persistent=self.persistent_workers,
            in_order=self.in_order,
            pin=self._pin() if self.pin_memory else None,
            told_length=self._told_length(),
        )

    def _told_length(self) -> int | None:
        is_iterable = isinstance(self.dataset, data.IterableDataset)
        return self._IterableDataset_len_called if is_iterable else None

    def _pin(self) -> Pin | None:
        """How to pin memory, if that can be done; PyTorch's warnings if not."""
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
        return None  # a sampler of the user's own knows
