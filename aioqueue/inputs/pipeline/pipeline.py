"""`Pipeline`: what is done with the items of a source, from the first function to the batches.

A pipeline is a description: a source and the stages after it. Threads and coroutines can iterate
over it again and again. Adding a stage makes a new pipeline, and does not change the old one. The
stages, and the code that runs them, are in the modules beside this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from aioqueue import InvalidArgumentError, telemetry
from aioqueue.arguments import checked_count
from aioqueue.inputs.options import Array, BatchOptions, FunctionWithRng, PrepareOptions
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, watch_of
from aioqueue.migration_hints import hint_attributes, hint_methods, not_searched
from aioqueue.public_names import DeferredModule, public

if TYPE_CHECKING:
    from typing import NoReturn, Unpack

    from aioqueue.inputs.core.items import Origin
    from aioqueue.inputs.pipeline import build, stages
    from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
    from aioqueue.telemetry import Monitor, Watch
else:
    build = DeferredModule("aioqueue.inputs.pipeline.build")
    stages = DeferredModule("aioqueue.inputs.pipeline.stages")

__all__ = ("Pipeline", "Stages")

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E")
K = TypeVar("K")

Later: TypeAlias = Awaitable[E] | Iterator[E] | AsyncIterator[E]
"""What coroutine functions and generator functions return."""

OneComponent: TypeAlias = Array | np.generic | complex | str | bytes | list[Any]
"""An example that is neither a tuple nor a mapping."""


class _NamedTuple(Protocol):
    """A named tuple, whose batch is one of the same class, with arrays as its fields."""

    def _asdict(self) -> dict[str, Any]: ...


@hint_attributes("a source or pipeline")
class Stages(ABC, Generic[T_co]):
    """The methods that add a stage. Sources and pipelines share them."""

    @abstractmethod
    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        """This pipeline with one more stage."""

    @abstractmethod
    def _pipeline(self) -> Pipeline[Any]:
        """This as a pipeline: a source is one without stages."""

    # The first two are for functions that make an example later, or several.
    @overload
    def prepare(
        self,
        function: Callable[[T_co], Later[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: FunctionWithRng[T_co, Later[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: Callable[[T_co], E],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: FunctionWithRng[T_co, E],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    def prepare(
        self,
        function: Callable[..., Any],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[Any]:
        """Call a function with every item, on workers.

        The result takes the item's place. If the function has a parameter ``rng``, it receives a
        NumPy generator that depends only on the seed, the epoch and the item.

        Args:
            function: called with an item as its only argument (a tuple is not unpacked). A
                coroutine function runs on tasks, and a generator function makes several examples.
            buffer_size: how many prepared examples may wait to be used. ``None`` is enough to have
                the next batch ready while you use this one.
            **options: those of `aioqueue.inputs.prepare`, which describes them:

                - ``workers=4``: how many calls at a time;
                - ``where="auto"``: ``"thread"`` (the default of plain functions), ``"task"`` (that
                  of coroutine functions), ``"process"``, ``"interpreter"`` or ``"ray"``;
                - ``ordered=True``: keep the order of the source. With ``False``, examples come as
                  soon as they are ready, and you cannot repeat a run exactly;
                - ``on_error="stop"``, ``"skip"`` or ``Retry(...)``, with ``max_failures=`` and
                  ``quarantine=``: what to do with an item that fails;
                - ``item_timeout=``: seconds that an item may take;
                - ``drop_none=False``: drop items for which the function returns ``None``;
                - ``max_in_flight=``, ``limit_bytes=``: how many items, and bytes of examples, may
                  be in flight; ``concurrency_key=``, ``max_per_key=``: how many items of one key;
                - ``autotune=False``: adjust the number of workers during the run;
                - ``seed=``: the seed of the generators; ``ray=``: options of Ray's actors.

        Raises:
            InvalidArgumentError: an option has a wrong value.
            TypeError: no option has this name.
        """
        return self._with(stages.Prepare(function, buffer_size, {**options}))

    def flat(
        self,
        function: Callable[..., Iterable[E] | Awaitable[Iterable[E]] | AsyncIterator[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]:
        """Call a function with every item, on workers, and flatten the iterables that it returns.

        The examples of one item are passed on together, when the last one is made. So they must
        fit into memory, and must be finite.

        Args:
            function: called with an item; returns an iterable of any number of examples. It may be
                a generator function. (An async generator function runs on tasks.)
            buffer_size: how many items whose examples are ready may wait to be used.
            **options: as for `prepare`.

        Raises:
            InvalidArgumentError: an option is wrong.
        """
        return self._with(stages.Flat(function, buffer_size, {**options}))

    def filter(self, predicate: Callable[[Any], object]) -> Pipeline[T_co]:
        """Keep the examples for which a function returns a true value.

        The function runs in the thread or task that asks for the next example. If it is slow, use
        ``prepare(function, drop_none=True)``, which calls it on workers.

        Args:
            predicate: a plain function, called with an example.

        Raises:
            InvalidArgumentError: `predicate` is not a plain function.
        """
        return self._with(stages.Filter(predicate))

    def shuffle(self, size: int, *, seed: int | None = None) -> Pipeline[T_co]:
        """Draw examples at random from a buffer that is kept full.

        The order depends only on the seed, the epoch and the order of the examples that arrive. To
        shuffle all items of an epoch before they are prepared, let the source do it:
        ``items(..., shuffle=True)``.

        Args:
            size: how many examples the buffer holds, >= 1.
            seed: for the draws; ``None`` derives one from the seed of the source.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        return self._with(stages.Shuffle(size, seed))

    @overload
    def batch(
        self, size: int, *, collate: Callable[[list[Any]], E], **options: Unpack[BatchOptions]
    ) -> Pipeline[E]: ...
    @overload
    def batch(
        self: Stages[_NamedTuple], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[Any]: ...
    @overload
    def batch(
        self: Stages[tuple[Any, ...]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[tuple[Array, ...]]: ...
    @overload
    def batch(
        self: Stages[Mapping[K, Any]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[dict[K, Array]]: ...
    @overload
    def batch(
        self: Stages[OneComponent], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[Array]: ...
    @overload
    def batch(
        self,
        size: int,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        **options: Unpack[BatchOptions],
    ) -> Pipeline[Any]: ...
    def batch(
        self,
        size: int,
        *,
        drop_remainder: bool = False,
        pad: bool = False,
        padding_value: Any = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        across_epochs: bool = False,
    ) -> Pipeline[Any]:
        """Make batches of consecutive examples.

        An example that is a tuple (also a named one) or a mapping has several components. Anything
        else is one component, also a list. The first example fixes the dtypes and shapes of all:
        Python's ints become int64, floats float64 and bools bool; arrays keep their dtype; strings,
        bytes and other objects are stored in arrays of objects. A later value that this would
        change, such as a float for an int64 component, is refused.

        Args:
            size: how many examples a batch has, >= 1.
            drop_remainder: drop the last examples of an epoch if they do not fill a batch.
            pad: pad every dimension to the largest size in the batch, at its end. Otherwise all
                examples must have the shapes of the first one.
            padding_value: what to pad with: one number, or one per component like the example.
            collate: a function that makes a batch of a list of examples in place of all this. You
                cannot combine it with ``pad`` or ``padding_value``.
            across_epochs: at the end of an epoch, keep examples that do not fill a batch for the
                next epoch. Such a batch mixes two epochs, and belongs to the later one.

        Returns:
            A pipeline of batches: per component an array of shape ``(size, *shape)``.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        return self._with(
            stages.Batch(size, drop_remainder, pad, padding_value, collate, across_epochs)
        )

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_size: int | Sequence[int] | None = None,
        *,
        tokens_per_batch: int | None = None,
        length: Callable[[Any], int] | None = None,
        padding_value: Any = 0,
        pad_to_boundary: bool = False,
        on_too_long: Literal["fail", "skip"] = "fail",
        drop_remainder: bool = False,
    ) -> Pipeline[tuple[Any, Any]]:
        """Make padded batches of examples of similar length.

        Args:
            boundaries: ascending ints >= 1. Bucket 0 takes lengths below the first boundary, bucket
                k takes lengths from ``boundaries[k - 1]`` to below ``boundaries[k]``, and the last
                bucket takes all longer ones.
            batch_size: how many examples a batch has: one number, or one for each bucket.
            tokens_per_batch: in place of `batch_size`: how many elements a batch may have,
                including padding.
            length: a function that returns the length of an example; ``None`` for the size of its
                first dimension.
            padding_value: as for `batch`.
            pad_to_boundary: pad the batches of bucket k to ``boundaries[k] - 1``, and not to their
                longest example. Then the last bucket is the one below the last boundary.
            on_too_long: ``"fail"`` raises for an example that fits into no batch; ``"skip"`` drops
                and counts it.
            drop_remainder: drop the examples that are left in the buckets at the end of an epoch.

        Returns:
            A pipeline of (lengths, batch): int64 of shape (n,), and components (n, longest, ...).

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        return self._with(
            stages.Bucket(
                boundaries,
                batch_size,
                tokens_per_batch,
                length,
                padding_value,
                pad_to_boundary,
                on_too_long,
                drop_remainder,
            )
        )

    def pack(
        self,
        length: int,
        *,
        padding_value: Any = 0,
        on_too_long: Literal["fail", "skip", "split"] = "fail",
    ) -> Pipeline[Any]:
        """Pack sequences into rows of a fixed length, each into the first row that has room.

        Each sequence is in one row, and is never cut (except with ``on_too_long="split"``). The
        method is first fit (Johnson, "Near-optimal bin packing algorithms", 1973) with a bounded
        number of open rows.

        Args:
            length: how long a row is, >= 1.
            padding_value: fills the rest of a row; as for `batch`.
            on_too_long: what to do with a sequence that is longer than a row: ``"fail"`` raises,
                ``"skip"`` drops it, ``"split"`` cuts it into pieces. An empty sequence is dropped.

        Returns:
            A pipeline of rows. For an example that is an array, a row is ``(row, segment_ids,
            positions)``; for a tuple, ``(*rows, segment_ids, positions)``; for a mapping, a dict
            with these two additional keys. Segments count from 1 within a row, and 0 is padding.
            Positions count from 0 within a segment. Both are int32 of shape ``(length,)``. All
            components of an example must have the same length. As in a batch, the first example
            fixes the dtypes, and the shapes of the entries.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        return self._with(stages.Pack(length, padding_value, on_too_long))

    def unbatch(self) -> Pipeline[Any]:
        """Split batches into their rows again.

        Rows of arrays are copies, which share no memory with the batch. Members of lists are passed
        on as they are.
        """
        return self._with(stages.Unbatch())

    def take(self, count: int) -> Pipeline[T_co]:
        """Keep the first examples of each epoch. The rest is not even prepared.

        Args:
            count: how many, >= 0.

        Raises:
            InvalidArgumentError: `count` is not an int >= 0.
        """
        return self._with(stages.Take(count))

    def mix(
        self,
        *others: Stages[E],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop: Literal["first", "all"] = "all",
    ) -> Pipeline[T_co | E]:
        """Mix with other pipelines: each example is the next one of a randomly drawn pipeline.

        Args:
            *others: pipelines or sources, which have their own functions, workers and seeds.
            weights: one for each, this pipeline first, in any unit; ``None`` for equal weights.
            seed: for the draws; ``None`` derives one from the seed of the source.
            stop: ``"all"`` ends an epoch when all pipelines have ended theirs. ``"first"`` ends it
                when a pipeline is drawn that has no example left.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        return self._with(stages.Mix(others, weights, seed, stop))

    def prefetch(self, buffer_size: int = 2) -> Pipeline[T_co]:
        """Make the next batches ahead, in a thread of their own.

        Without it, stages after the last `prepare` run in your training thread. That is cheap,
        unless batches are large.

        Args:
            buffer_size: how many batches may be ready, >= 1.

        Raises:
            InvalidArgumentError: `buffer_size` is not an int >= 1.
        """
        return self._with(stages.Prefetch(buffer_size))

    def to_device(self, device: Any, *, buffer_size: int = 2) -> Pipeline[Any]:
        """Copy the next batches to a device before you ask for them.

        A thread makes batches in a few host arrays, which it reuses, and copies them from there.
        For CUDA these arrays are pinned, and the copies run on a stream of their own: only the
        stream that is current when you take a batch waits for them. For other devices the thread
        itself waits for each copy. Each batch is yours: no later batch overwrites it.

        Arrays of numbers or bools (and NumPy scalars) become tensors, or arrays of JAX. The batch
        keeps its structure of tuples, mappings and lists. Tensors that your own function has made
        are copied, too. Strings, other objects and Python's own numbers stay as they are. JAX
        turns 64-bit numbers into 32-bit ones, unless you set ``jax_enable_x64``.

        Only `take` and `shard` may follow this stage.

        Args:
            device: a string such as ``"cuda"``, ``"cuda:1"`` or ``"cpu"``, or a ``torch.device``,
                for tensors; a device or a sharding of JAX for its arrays. ``"cuda"`` is the CUDA
                device that is current in the thread that iterates over the pipeline.
            buffer_size: how many batches may wait on the device, >= 1, in addition to the one in
                use. One more may be in transfer.

        Returns:
            A pipeline of batches on the device.

        Raises:
            InvalidArgumentError: an argument is wrong, or the machine does not have the device.
            ModuleNotFoundError: the device needs PyTorch, which is not installed.
        """
        return self._with(stages.ToDevice.of(device, buffer_size))

    def shard(
        self, rank: int, ranks: int, *, uneven: Literal["pad", "drop", "allow"] = "pad"
    ) -> Pipeline[T_co]:
        """Read one rank's shard of the source, in data-parallel training.

        The ranks divide one common order of items, place by place. Each prepares only its own
        items, whatever stages come before this one. Sources that were mixed in before are sharded,
        too. All ranks make the same number of batches; if one took fewer steps, the others would
        deadlock in all-reduce. If a rank skips items, it repeats its latest examples of the epoch
        in their place.

        Args:
            rank: the rank of this program, ``0 <= rank < ranks``.
            ranks: how many ranks there are. All must have the same source, seed and stages.
            uneven: what to do if the items do not divide evenly: ``"pad"`` repeats the first items
                of the last round; ``"drop"`` drops that round; ``"allow"`` lets ranks differ.

        Raises:
            InvalidArgumentError: an argument is wrong; or the number of batches depends on the
                data, which works only with ``"allow"``.
        """
        return self._with(stages.Shard.of(rank, ranks, uneven))

    def epochs(
        self,
        count: int | None = None,
        *,
        start: int = 0,
        resume: Mapping[str, Any] | None = None,
        watchdog: float | None = None,
        journal: str | PathLike[str] | None = None,
        raise_single: bool = False,
    ) -> Epochs[T_co]:
        """Iterate over several epochs in one run.

        Each epoch has another order, and other random generators, than the one before. The workers
        live on from one epoch to the next, and prepare the next one while you still use this one.

        Args:
            count: how many epochs; ``None`` for no end.
            start: the number of the first epoch, to continue where an earlier run has ended. Not
                together with ``resume``.
            resume: what ``state_dict()`` of an earlier run returned, or `merge_positions` for
                another number of ranks. The run begins behind that position, with the rest of its
                epoch. If all stages keep the order, you get exactly the batches that the earlier
                run would have made. You may change functions, workers, limits, and the size of the
                last batches in the pipeline.
            watchdog: if nothing has moved for so many seconds while something waits, the log has a
                warning that explains why: see `aioqueue.Coordinator`.
            journal: a file in which the run records the items of each batch before you receive the
                batch: see `read_journal`. With ``resume``, the same file is continued: entries of
                batches behind the position are removed, because these batches are made again. The
                file of another run is renamed, and not overwritten.
            raise_single: whether a single failure is raised as itself, so that an ``except
                KeyError`` around the loop works. Several failures are always an `ExceptionGroup`.

        Returns:
            An iterable of epochs, for ``for`` and ``async for``. Each epoch is an iterable of what
            the pipeline makes (of the items, if the source has no stages), and has a ``len`` if
            that is known. When you leave the loop, the workers end.

        Raises:
            InvalidArgumentError: an argument is wrong; or the position is damaged, or belongs to
                another pipeline: then the message names the field that differs, and both values.
        """
        start = checked_count(start, "start")
        stop = None if count is None else start + checked_count(count, "count")
        if start and resume is not None:
            raise InvalidArgumentError(
                f"start: got {start} together with resume; expected only one of them: the position"
                " says in which epoch to begin, and count is the number of all epochs from 0 on"
            )
        from aioqueue.inputs.pipeline.epochs import Epochs
        from aioqueue.inputs.pipeline.node import EpochRange

        return Epochs(
            self._pipeline(), EpochRange(start, stop), resume, watchdog, journal, raise_single
        )

    def __contains__(self, element: object) -> NoReturn:
        """Refuse ``in``: a search would run the pipeline.

        Raises:
            TypeError: always.
        """
        not_searched(self)


@public("aioqueue.inputs", hints="inputs")
class Pipeline(Stages[T_co], BasePipeline[T_co]):
    """A source, and the stages that process its items. You make it by adding stages to a source.

    A pipeline is an immutable description. If you iterate over it, with ``for`` or ``async for``,
    you get its first epoch; `epochs` gives several. Each iteration makes its own queues, workers
    and coordinator, and leaving the loop in any way ends them. If a worker or a stage fails, your
    next step raises the failure, in an `ExceptionGroup` as a coordinator reports it. What the body
    of your loop raises is not changed.

    Attributes:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def __str__(self) -> str:
        from aioqueue.inputs.pipeline.diagram import text

        return text(self)

    def _repr_svg_(self) -> str:
        """The diagram that notebooks show."""
        from aioqueue.inputs.pipeline.diagram import svg

        return svg(self)

    def __bool__(self) -> bool:
        """Always true, also for an empty pipeline: otherwise ``len`` would decide."""
        return True

    def __len__(self) -> int:
        """How many batches (or rows) one epoch has, as if no item were skipped.

        Raises:
            TypeError: the number depends on the data, or the source does not know its length.
        """
        length = build.length_of(self)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not know its length"
            )
        return length

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._first_epoch())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self._first_epoch())

    def _first_epoch(self) -> Epoch[T_co]:
        from aioqueue.inputs.pipeline.epochs import Epoch
        from aioqueue.inputs.pipeline.progress import ResumePoint

        build.warn_if_reiterated(self)
        return Epoch(self, ResumePoint(0), watch_of(self))

    def resume(self, state: Mapping[str, Any]) -> Epoch[T_co]:
        """Resume at a position, for the rest of its epoch.

        Args:
            state: what ``state_dict()`` of an epoch, or of epochs, returned.

        Returns:
            An epoch that begins behind the position. Iterate over it once, with ``for`` or with
            ``async for``.

        Raises:
            InvalidArgumentError: the state is not a position, is damaged, or belongs to another
                pipeline: then the message names the field that differs, and both values.
        """
        from aioqueue.inputs.pipeline.checkpoint import checked_standing
        from aioqueue.inputs.pipeline.epochs import Epoch

        return Epoch(*checked_standing(self, state), watch_of(self))

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch all runs of this pipeline from now on, and find their bottleneck.

        Loops over the pipeline and over its epochs are measured, too: how long they wait for data,
        and how long they work. The stages are named after their functions.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.

        Returns:
            The monitor, which ends with its ``with`` block.
        """
        return telemetry.Monitor(self, log=log)

    def _watched(self) -> Watch:
        return watch_of(self)

    def locate(self, item: Origin) -> str:
        """Describe an item that a journal names, in words, as precisely as its source can.

        For a sequence you get its name and the index. For a file you get its path and the number of
        the record, and the offset in bytes if all records have one length. For a mixture you get
        the description of the source that the item is from.

        Args:
            item: one of the ``items`` of a `JournalEntry`.

        Raises:
            InvalidArgumentError: this pipeline has no such item.
        """
        sources = build.sources_of(self)
        if not 0 <= item.source < len(sources):
            raise InvalidArgumentError(
                f"item: got one of source {item.source}; expected a source below {len(sources)},"
                " because this pipeline has no more"
            )
        return sources[item.source].locate(item.index)

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        # What runs a pipeline is imported here, so that the first batch need not wait for it.
        from aioqueue.inputs.pipeline import epochs  # noqa: F401

        return build.checked(Pipeline(self.source, (*self.stages, stage)))

    def _pipeline(self) -> Pipeline[Any]:
        return self


hint_methods(
    Pipeline,
    "inputs",
    [name for name, method in vars(Stages).items() if name[0] != "_" and callable(method)],
    dict.fromkeys(("prepare", "flat"), tuple(PrepareOptions.__optional_keys__)),
)
