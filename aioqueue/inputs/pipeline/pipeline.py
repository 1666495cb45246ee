"""`Pipeline`: what is done with the items of a source, from the first function to the batches.

A pipeline is a description: a source and the stages after it. Threads and coroutines can iterate
over it again and again, and every stage that is added makes a new one. The files beside this one
have the stages, and what runs them.
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
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_count
from aioqueue.inputs.options import PrepareOptions
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage
from aioqueue.migration_hints import hint_methods, no_attribute, not_searched
from aioqueue.public_names import public

if TYPE_CHECKING:
    from typing import Unpack

    from aioqueue.inputs.core.items import Origin
    from aioqueue.inputs.pipeline.epochs import Epoch, Epochs
    from aioqueue.telemetry import Monitor, Watch

__all__ = ("Pipeline", "Stages")

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
E = TypeVar("E")


class Stages(ABC, Generic[T_co]):
    """What sources and pipelines have in common: stages can be added."""

    @abstractmethod
    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        """The pipeline that this is the beginning of."""

    @abstractmethod
    def _pipeline(self) -> Pipeline[Any]:
        """This as a pipeline: a source alone is one without stages."""

    @overload
    def prepare(
        self,
        function: Callable[..., Awaitable[E] | Iterator[E] | AsyncIterator[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: Callable[..., E],
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

        What it returns takes the item's place. A function with a parameter ``rng`` is given a
        NumPy generator that depends on the seed, the epoch and the item alone.

        Args:
            function: called with an item, as its one argument (a tuple is not spread over several);
                a coroutine function runs on tasks, a generator function makes several examples.
            buffer_size: how many prepared examples may wait to be used; ``None`` for enough to have
                the next batch ready while this one is used.
            **options: those of `aioqueue.inputs.prepare`, which describes them:

                - ``workers=4``: how many calls at a time;
                - ``where="auto"``: ``"thread"`` (the default of plain functions), ``"task"`` (that
                  of coroutine functions), ``"process"``, ``"interpreter"`` or ``"ray"``;
                - ``ordered=True``: keep the order of the source. ``False`` gives that up, and with
                  it that runs can be repeated exactly;
                - ``on_error="stop"``, ``"skip"`` or ``Retry(...)``, with ``max_failures=`` and
                  ``quarantine=``: what becomes of an item that has failed;
                - ``item_timeout=``: seconds that an item may take;
                - ``drop_none=False``: leave out items for which the function returns ``None``;
                - ``max_in_flight=``, ``limit_bytes=``: how many items, and bytes of examples, may
                  be in work; ``concurrency_key=``, ``max_per_key=``: how many items of one key;
                - ``autotune=False``: find the number of workers while it runs;
                - ``seed=``: of the generators; ``ray=``: options of Ray's actors.

        Raises:
            InvalidArgumentError: an option is wrong.
            TypeError: there is no such option.
        """
        from aioqueue.inputs.pipeline.stages import Prepare

        return self._with(Prepare(function, buffer_size, {**options}))

    def flat(
        self,
        function: Callable[..., Iterable[E] | Awaitable[Iterable[E]] | AsyncIterator[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]:
        """Call a function with every item, on workers, and go on with each of what it returns.

        The examples of one item are handed on together, when the last of them is made: they must
        fit into memory, and have an end.

        Args:
            function: called with an item, returns an iterable of examples, none or many; a
                generator function, say. (An async generator function runs on tasks.)
            buffer_size: how many items whose examples are ready may wait to be used.
            **options: as for `prepare`.

        Raises:
            InvalidArgumentError: an option is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Flat

        return self._with(Flat(function, buffer_size, {**options}))

    def filter(self, predicate: Callable[[Any], object]) -> Pipeline[T_co]:
        """Leave out what a function says no to.

        It is called in the thread or task that asks for the next example: for one that takes long,
        ``prepare(function, drop_none=True)`` does it on workers.

        Args:
            predicate: a plain function, called with an example.

        Raises:
            InvalidArgumentError: it is none.
        """
        from aioqueue.inputs.pipeline.stages import Filter

        return self._with(Filter(predicate))

    def shuffle(self, size: int, *, seed: int | None = None) -> Pipeline[T_co]:
        """Draw examples at random from a buffer that is kept full.

        What is drawn depends on the seed, the epoch and the order of what comes in alone. To
        shuffle whole items before they are prepared, and as a whole, ask the source:
        ``items(..., shuffle=True)``.

        Args:
            size: how many examples the buffer holds, >= 1.
            seed: for the draws; ``None`` derives one from that of the source.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Shuffle

        return self._with(Shuffle(size, seed))

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
        """Make batches of examples that follow each other.

        An example that is a tuple (also a named one) or a mapping is several components; anything
        else is one, also a list. The first example decides the dtypes and shapes of all: Python's
        ints become int64, floats float64 and bools bool, arrays keep their dtype, and strings,
        bytes and other objects are kept in arrays of objects. What would change by that, such as a
        later float for an int64 component, is refused.

        Args:
            size: how many examples a batch has, >= 1.
            drop_remainder: leave out the last examples of an epoch if they are fewer than that.
            pad: pad every dimension to the largest size in the batch, at the high end; else all
                examples must have the shapes of the first.
            padding_value: what to pad with: one number, or one per component like the example.
            collate: makes a batch of a list of examples instead: what it returns is the batch.
                Nothing is padded then: not with ``pad`` or ``padding_value``.
            across_epochs: let examples wait for those of the next epoch instead of making a smaller
                batch: then batches mix epochs, and the batch counts for the one that it ends in.

        Returns:
            A pipeline of batches: per component an array of shape ``(size, *shape)``.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Batch

        return self._with(Batch(size, drop_remainder, pad, padding_value, collate, across_epochs))

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
        """Make padded batches of examples of like length.

        Args:
            boundaries: ascending ints >= 1. Bucket 0 takes lengths below the first of them, bucket
                k those from ``boundaries[k - 1]`` to below ``boundaries[k]``, the last one others.
            batch_size: how many examples a batch has, one number or one for each bucket.
            tokens_per_batch: instead, how many elements it may have, padding included.
            length: tells how long an example is; ``None`` for its first dimension.
            padding_value: as for `batch`.
            pad_to_boundary: pad batches of bucket k to ``boundaries[k] - 1`` instead of to their
                longest; then the last bucket is the one below the last boundary.
            on_too_long: ``"fail"`` raises for an example that fits into no batch; ``"skip"`` leaves
                it out, and counts it.
            drop_remainder: leave out what is in the buckets at the end of an epoch.

        Returns:
            A pipeline of (lengths, batch): int64 of shape (n,), and components (n, longest, ...).

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Bucket

        return self._with(
            Bucket(
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
        """Pack sequences into rows of a fixed length, each into the first that has room for it.

        Sequences are never cut (but for ``on_too_long="split"``), and each is in one row. (First
        fit; Johnson, "Near-optimal bin packing algorithms", 1973, with a bounded number of open
        bins.)

        Args:
            length: how long a row is, >= 1.
            padding_value: fills what is left of a row; as for `batch`.
            on_too_long: what to do with a sequence that is longer than a row. One of length 0 is
                left out.

        Returns:
            A pipeline of rows: for an example that is an array, ``(row, segment_ids, positions)``;
            for a tuple, ``(*rows, segment_ids, positions)``; for a mapping, a dict with these two
            keys besides its own. Segments count from 1 within a row, and 0 is padding; positions
            count from 0 within a segment; both int32 of shape ``(length,)``. All components of an
            example must be as long as each other. As in a batch, the first one decides their
            dtypes, and the shapes of their entries.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Pack

        return self._with(Pack(length, padding_value, on_too_long))

    def unbatch(self) -> Pipeline[Any]:
        """Take batches apart again, into their rows.

        Rows of arrays are copies, which share no memory with the batch; members of lists are given
        as they are.
        """
        from aioqueue.inputs.pipeline.stages import Unbatch

        return self._with(Unbatch())

    def take(self, count: int) -> Pipeline[T_co]:
        """Take the first of each epoch, and do not even prepare the rest.

        Args:
            count: how many, >= 0.

        Raises:
            InvalidArgumentError: it is no such int.
        """
        from aioqueue.inputs.pipeline.stages import Take

        return self._with(Take(count))

    def mix(
        self,
        *others: Stages[E],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop: Literal["first", "all"] = "all",
    ) -> Pipeline[T_co | E]:
        """Mix with others: each example is the next one of a pipeline drawn at random.

        Args:
            *others: pipelines or sources, which have their own functions, workers and seeds.
            weights: one for each, this one first, in any unit; ``None`` for equal ones.
            seed: for the draws; ``None`` derives one from that of the source.
            stop: ``"all"`` ends an epoch when all of them have ended theirs; ``"first"`` where an
                example of one that has ended would be next.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.inputs.pipeline.stages import Mix

        return self._with(Mix(others, weights, seed, stop))

    def prefetch(self, buffer_size: int = 2) -> Pipeline[T_co]:
        """Have the next ones ready, made by a thread of their own.

        Without it what follows the last `prepare` is done by whoever asks for it: that is cheap,
        unless batches are large.

        Args:
            buffer_size: how many may be ready, >= 1.

        Raises:
            InvalidArgumentError: it is no such int.
        """
        from aioqueue.inputs.pipeline.stages import Prefetch

        return self._with(Prefetch(buffer_size))

    def to_device(self, device: Any, *, buffer_size: int = 2) -> Pipeline[Any]:
        """Have the next batches on a device before they are asked for.

        A thread makes them in a few arrays of the host that are used again and again, and copies
        them from there. To CUDA the arrays are pinned and the copies run on a stream of their own:
        nobody waits for them but the stream that is current where a batch is taken. To others that
        thread copies, and waits for it. Each batch is yours: no later one is written over it.

        Arrays of numbers or bools (and scalars of NumPy) become tensors or arrays of JAX, in the
        structure of tuples, mappings and lists that the batch has; also where a function of the
        user's has made tensors. Strings, other objects and Python's own numbers stay as they are.
        JAX makes 32 bits of 64, unless it was told otherwise (``jax_enable_x64``).

        It is the last stage but for `take` and `shard`.

        Args:
            device: a string such as ``"cuda"``, ``"cuda:1"`` or ``"cpu"``, or a ``torch.device``,
                for tensors; a device or a sharding of JAX for its arrays. ``"cuda"`` is the CUDA
                device that is current in the thread that goes through the pipeline.
            buffer_size: how many batches may wait on the device, >= 1, besides the one in use;
                another one may be on its way.

        Returns:
            A pipeline of batches on the device.

        Raises:
            InvalidArgumentError: an argument is wrong, or there is no such device.
            ModuleNotFoundError: PyTorch is asked for, and not installed.
        """
        from aioqueue.inputs.pipeline.stages import ToDevice

        return self._with(ToDevice.of(device, buffer_size))

    def shard(
        self, rank: int, ranks: int, *, uneven: Literal["pad", "drop", "allow"] = "pad"
    ) -> Pipeline[T_co]:
        """Go through one rank's part of the source, in data-parallel training.

        The ranks cut one common order, place by place, whatever stages come before: what is not
        this rank's is not prepared. What was mixed in before this stage is cut as well. All ranks
        make the same number of batches, so that no collective call waits for ever: also where
        items were skipped, for which the rank's latest examples of the epoch come again.

        Args:
            rank: this one, ``0 <= rank < ranks``.
            ranks: how many there are; all must have the same source, seed and stages.
            uneven: where the items do not divide: ``"pad"`` lets the first of the last round come
                again; ``"drop"`` leaves that round out; ``"allow"`` lets ranks differ.

        Raises:
            InvalidArgumentError: an argument is wrong, or the stages make a number of batches that
                depends on the data, which only ``"allow"`` can go with.
        """
        from aioqueue.inputs.pipeline.stages import Shard

        return self._with(Shard.of(rank, ranks, uneven))

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
        """Go through several epochs, which are prepared as one run.

        Each has another order and other generators than the one before. Workers live on from one
        to the next, and the next is prepared while this one is still used.

        Args:
            count: how many; ``None`` goes on for ever.
            start: the number of the first: where an earlier run has ended. Not with ``resume``.
            resume: what ``state_dict()`` of an earlier run gave, or `merge_positions` of those of
                another number of ranks: the batches behind it come, first those that are left of
                its epoch. Where the order is kept they are exactly those that the earlier run would
                have made. Functions, workers, limits, and the size of batches that are made last
                may be others than they were.
            watchdog: seconds after which the log has a warning that says why, when nothing has
                moved and someone has waited for so long: see `aioqueue.Coordinator`.
            journal: a file that notes which items each batch is made of, before it is handed out:
                see `read_journal`. With ``resume``, writing goes on in the same file: entries of
                batches behind the position, which come again, are removed. The file of another run
                is renamed, and not written over.
            raise_single: whether a single failure is raised as itself, so that an ``except
                KeyError`` around the loop works. Several are one `ExceptionGroup` in any case.

        Returns:
            An iterable, with ``for`` and ``async for``, of epochs, each of which is an iterable of
            what the pipeline makes (or of the items, of a source that no stage follows), with
            ``len`` where that is known. Leaving it ends the workers.

        Raises:
            InvalidArgumentError: an argument is wrong; or the position is damaged, or belongs to
                another pipeline: the message names the field that differs, and both values.
        """
        start = checked_count(start, "start")
        stop = None if count is None else start + checked_count(count, "count")
        if start and resume is not None:
            raise InvalidArgumentError(
                f"start: got {start} beside resume; expected one of both: a position has the epoch"
                " to go on in, and the count is that of all epochs from 0 on"
            )
        from aioqueue.inputs.pipeline.epochs import Epochs
        from aioqueue.inputs.pipeline.node import EpochRange

        return Epochs(
            self._pipeline(), EpochRange(start, stop), resume, watchdog, journal, raise_single
        )

    def __contains__(self, element: object) -> NoReturn:
        """Refuse to be searched, which would use up what is iterated.

        Raises:
            TypeError: always.
        """
        not_searched(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            no_attribute(self, name, kind="a source or pipeline")


@public("aioqueue.inputs", hints="inputs")
class Pipeline(Stages[T_co], BasePipeline[T_co]):
    """A source, and what is done with its items. Made by the stages of sources and pipelines.

    It is a description, which never changes. Iterating over it, with ``for`` or ``async for``, is
    one epoch, the first; `epochs` goes through several. Each time queues, workers and a coordinator
    are made; leaving the loop, in whatever way, ends them all. What a worker or stage raises is
    raised where the next batch is asked for, in an `ExceptionGroup` as a coordinator reports it;
    what the body of the loop raises is its own.

    Attributes:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def __str__(self) -> str:
        from aioqueue.inputs.pipeline.diagram import text

        return text(self)

    def _repr_svg_(self) -> str:
        """What notebooks show."""
        from aioqueue.inputs.pipeline.diagram import svg

        return svg(self)

    def __bool__(self) -> bool:
        """A pipeline is always true, also an empty one."""
        return True

    def __len__(self) -> int:
        """How much one epoch gives: as if no item were skipped.

        Raises:
            TypeError: it depends on the data, or the source does not say how many items it has.
        """
        from aioqueue.inputs.pipeline.build import length_of

        length = length_of(self)
        if length is None:
            raise TypeError(
                f"the length of {self!r} is not known: it depends on the data, or the source does"
                " not say how many items it has"
            )
        return length

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._first_epoch())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self._first_epoch())

    def _first_epoch(self) -> Epoch[T_co]:
        from aioqueue.inputs.pipeline.build import warn_if_reiterated
        from aioqueue.inputs.pipeline.checkpoint import ResumePoint
        from aioqueue.inputs.pipeline.epochs import Epoch
        from aioqueue.inputs.pipeline.inspection import watch_of

        warn_if_reiterated(self)
        return Epoch(self, ResumePoint(0), watch_of(self))

    def resume(self, state: Mapping[str, Any]) -> Epoch[T_co]:
        """The rest of the epoch in which a position is.

        Args:
            state: what ``state_dict()`` of an epoch, or of epochs, gave.

        Returns:
            What comes behind the position, once, with ``for`` or with ``async for``.

        Raises:
            InvalidArgumentError: it is no position, is damaged, or belongs to another pipeline: the
                message names the field that differs, and both values.
        """
        from aioqueue.inputs.pipeline.checkpoint import checked_standing
        from aioqueue.inputs.pipeline.epochs import Epoch
        from aioqueue.inputs.pipeline.inspection import watch_of

        return Epoch(*checked_standing(self, state), watch_of(self))

    def monitor(self, *, log: bool = False) -> Monitor:
        """Watch all that goes through this pipeline from now on, and tell what limits it.

        Loops over the pipeline, its epochs included, tell their waits for data from their work by
        themselves. Stages have the names of their functions.

        Args:
            log: write a line a minute to the log (``aioqueue``), and a warning when data are late.

        Returns:
            The monitor, which ends with its ``with`` block.
        """
        from aioqueue.telemetry import Monitor

        return Monitor(self, log=log)

    def _watched(self) -> Watch:
        from aioqueue.inputs.pipeline.inspection import watch_of

        return watch_of(self)

    def locate(self, item: Origin) -> str:
        """What an item is that a journal names, in words, as far as its source knows.

        Of a sequence that is its name and index; of a file its path and which of its records it is,
        with the offset in bytes where they are of one length; of a mixture of sources that of the
        source which it is from.

        Args:
            item: one of the ``items`` of a `JournalEntry`.

        Raises:
            InvalidArgumentError: this pipeline has no such item.
        """
        from aioqueue.inputs.pipeline.build import sources_of

        sources = sources_of(self)
        if not 0 <= item.source < len(sources):
            raise InvalidArgumentError(
                f"item: got one of source {item.source}; expected less than {len(sources)}, as many"
                " sources as this pipeline has"
            )
        return sources[item.source].locate(item.index)

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        # What runs a pipeline is imported here, so that the first batch need not wait for it.
        from aioqueue.inputs.pipeline import epochs  # noqa: F401
        from aioqueue.inputs.pipeline.build import checked

        return checked(Pipeline(self.source, (*self.stages, stage)))

    def _pipeline(self) -> Pipeline[Any]:
        return self


hint_methods(
    Pipeline,
    "inputs",
    [name for name, method in vars(Stages).items() if name[0] != "_" and callable(method)],
    dict.fromkeys(("prepare", "flat"), tuple(PrepareOptions.__optional_keys__)),
)
