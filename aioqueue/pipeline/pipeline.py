"""`Pipeline`: what is done with the items of a source, from the first function to the batches.

A pipeline is a description: a source and the stages after it. Threads and coroutines can iterate
over it again and again. Adding a stage makes a new pipeline, and does not change the old one. The
stages, and the code that runs them, are in the modules beside this one.
"""

from __future__ import annotations

from abc import abstractmethod
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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from aioqueue.base.hints import hint_attributes, hint_methods
from aioqueue.base.public_names import public
from aioqueue.pipeline.run_methods import IterablePipeline, RunMethods, methods_of
from aioqueue.pipeline.stages.base import BaseStage
from aioqueue.workers.options import (
    Array,
    BatchOptions,
    DataclassLike,
    DroppingOptions,
    FunctionWithRng,
    Later,
    NamedTupleLike,
    OneComponent,
    PrepareOptions,
    TypedDictLike,
)

if TYPE_CHECKING:
    from typing import Unpack


T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E")
K = TypeVar("K")
E_co = TypeVar("E_co", covariant=True)


class _StagesOfDataclasses(Protocol[E_co]):
    """What `Stages` of dataclasses are. Of a type variable in the place of ``self``, mypy checks
    no bound, so there are two: one is found, and the other one is checked."""

    def _found(self) -> E_co: ...
    def _checked(self) -> DataclassLike: ...


@hint_attributes("a source or pipeline")
class Stages(RunMethods[T_co]):
    """The methods that add a stage. Sources and pipelines share them."""

    if TYPE_CHECKING:  # see `_StagesOfDataclasses`

        def _found(self) -> T_co: ...
        def _checked(self) -> T_co: ...

    @abstractmethod
    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        """This pipeline with one more stage."""

    # Of each four, the first two are for functions that make an example later, or several.
    @overload
    def prepare(
        self,
        function: Callable[[T_co], Later[E | None]],
        *,
        drop_none: Literal[True],
        buffer_size: int | None = None,
        **options: Unpack[DroppingOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: FunctionWithRng[T_co, Later[E | None]],
        *,
        drop_none: Literal[True],
        buffer_size: int | None = None,
        **options: Unpack[DroppingOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: Callable[[T_co], E | None],
        *,
        drop_none: Literal[True],
        buffer_size: int | None = None,
        **options: Unpack[DroppingOptions],
    ) -> Pipeline[E]: ...
    @overload
    def prepare(
        self,
        function: FunctionWithRng[T_co, E | None],
        *,
        drop_none: Literal[True],
        buffer_size: int | None = None,
        **options: Unpack[DroppingOptions],
    ) -> Pipeline[E]: ...
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
                the next batch ready while you use this one; if the examples are batches, one.
            **options: those of `aioqueue.inputs.prepare`, which describes them:

                - ``workers=4``: how many calls at a time;
                - ``where="auto"``: ``"thread"`` (the default of plain functions), ``"task"`` (that
                  of coroutine functions), ``"process"``, ``"interpreter"`` or ``"ray"``;
                - ``ordered=True``: keep the order of the source, so that runs can be repeated;
                - ``on_error="stop"``, ``"skip"`` or ``Retry(...)``, with ``max_failures=`` and
                  ``quarantine=``: what to do with an item that fails;
                - ``item_timeout=``: seconds for an item; ``drop_none=False``: drop ``None``;
                - ``max_in_flight=``, ``limit_bytes=``: how many items, and bytes of examples, may
                  be in flight; of batches, one for each worker and one more;
                - ``concurrency_key=``, ``max_per_key=``: how many items of one key may be;
                - ``rate=``, ``burst=``: how often it may be called, such as ``per_second(100)``;
                - ``autotune=False``: adjust the number of workers during the run;
                - ``seed=``: the seed of the generators; ``ray=``: options of Ray's actors.

        Raises:
            InvalidArgumentError: an option has a wrong value.
            TypeError: no option has this name.
        """
        from aioqueue.pipeline.stages.prepare import Prepare

        return self._with(Prepare(function, buffer_size, {**options}))

    @overload
    def flat(
        self,
        function: Callable[[T_co], Awaitable[Iterable[E]] | AsyncIterator[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def flat(
        self,
        function: FunctionWithRng[T_co, Awaitable[Iterable[E]] | AsyncIterator[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def flat(
        self,
        function: Callable[[T_co], Iterable[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def flat(
        self,
        function: FunctionWithRng[T_co, Iterable[E]],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    def flat(
        self,
        function: Callable[..., Any],
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[Any]:
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
        from aioqueue.pipeline.stages.flat import Flat

        return self._with(Flat(function, buffer_size, {**options}))

    @overload
    def map_batches(
        self,
        function: Callable[..., Awaitable[E] | Iterator[E] | AsyncIterator[E]],
        size: int | None = None,
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    @overload
    def map_batches(
        self,
        function: Callable[..., E],
        size: int | None = None,
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[E]: ...
    def map_batches(
        self,
        function: Callable[..., Any],
        size: int | None = None,
        *,
        buffer_size: int | None = None,
        **options: Unpack[PrepareOptions],
    ) -> Pipeline[Any]:
        """Call a function with every batch, on workers: for one that is faster with many at once.

        What it returns takes the batch's place; `unbatch` makes single examples of it again. With
        a ``size``, ``map_batches(f, 32)`` is ``batch(32).map_batches(f)``.

        Args:
            function: called with a batch, as `batch` makes it.
            size: how many examples make a batch, >= 1; ``None`` where a stage before makes batches.
            buffer_size: how many batches may wait to be used, one by default; as for `prepare`.
            **options: as for `prepare`. A failure, a retry or a skip (``on_error=``) concerns the
                whole batch.

        Raises:
            InvalidArgumentError: an option is wrong; or there is no size, and no stage before makes
                batches.
        """
        from aioqueue.pipeline.stages.batch import Batch
        from aioqueue.pipeline.stages.map_batches import MapBatches

        batches = self if size is None else self._with(Batch.of_size(size))
        return batches._with(MapBatches(function, buffer_size, {**options}))

    def filter(self, predicate: Callable[[Any], object]) -> Pipeline[T_co]:
        """Keep the examples for which a function returns a true value.

        The function runs in the thread or task that asks for the next example; if it is slow, use
        ``prepare(function, drop_none=True)``.

        Args:
            predicate: a plain function, called with an example.

        Raises:
            InvalidArgumentError: `predicate` is not a plain function.
        """
        from aioqueue.pipeline.stages.filter import Filter

        return self._with(Filter(predicate))

    def shuffle(self, size: int, *, seed: int | None = None) -> Pipeline[T_co]:
        """Draw examples at random from a buffer that is kept full.

        The order depends only on the seed, the epoch and the order of the examples that arrive.
        ``items(..., shuffle=True)`` shuffles all items of an epoch before they are prepared.

        Args:
            size: how many examples the buffer holds, >= 1.
            seed: for the draws; ``None`` derives one from the seed of the source.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.shuffle import Shuffle

        return self._with(Shuffle(size, seed))

    @overload
    def batch(
        self, size: int, *, collate: Callable[[list[Any]], E], **options: Unpack[BatchOptions]
    ) -> Pipeline[E]: ...
    # Classes of yours stay, and with them the types of their fields: of a batch, all are arrays.
    @overload
    def batch(
        self: Stages[NamedTupleLike[E]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[E]: ...
    @overload
    def batch(
        self: Stages[tuple[OneComponent, ...]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[tuple[Array, ...]]: ...
    @overload
    def batch(
        self: Stages[TypedDictLike[E]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[E]: ...
    @overload
    def batch(
        self: Stages[Mapping[K, OneComponent]], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[dict[K, Array]]: ...
    @overload
    def batch(
        self: Stages[OneComponent], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[Array]: ...
    @overload
    def batch(
        self: Stages[tuple[Any, ...] | Mapping[Any, Any]],
        size: int,
        **options: Unpack[BatchOptions],
    ) -> Pipeline[Any]: ...
    @overload
    def batch(
        self: _StagesOfDataclasses[E], size: int, **options: Unpack[BatchOptions]
    ) -> Pipeline[E]: ...
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
        objects: bool | str | Sequence[str] = False,
    ) -> Pipeline[Any]:
        """Make batches of consecutive examples.

        An example is a tree of dicts, tuples, lists, named tuples and dataclasses; its batch has
        the same containers with an array in each place. A list of numbers or text is one array. The
        first example fixes the containers, dtypes and shapes of all: Python's ints become int64,
        floats float64 and bools bool; arrays keep their dtype; text is stored in arrays of objects.
        A later value that this would change, such as a float for an int64, is refused.

        Args:
            size: how many examples a batch has, >= 1.
            drop_remainder: drop the last examples of an epoch if they do not fill a batch.
            pad: pad every dimension to the largest size in the batch, at its end. Otherwise all
                examples must have the shapes of the first one.
            padding_value: what to pad with: one number, or a tree of numbers like the example.
            collate: a function that makes a batch of a list of examples in place of all this. You
                cannot combine it with ``pad``, ``padding_value`` or ``objects``.
            across_epochs: at the end of an epoch, keep examples that do not fill a batch for the
                next epoch. Such a batch mixes two epochs, and belongs to the later one. If an epoch
                is left early, by your loop, `take`, `zip` or a `mix` that stops with the first, the
                next one begins with such examples or without: stages behind may have read ahead.
            objects: which values are kept as they are, in arrays of objects: those at these paths,
                such as ``"image.exif"``; ``True`` for all that are no arrays, numbers or text.

        Returns:
            A pipeline of batches: per component an array of shape ``(size, *shape)``. For type
            checkers, a batch of named tuples, dataclasses or typed dicts has their class. So
            annotate a field with a type that holds in both, such as ``Any`` for an int, whose batch
            is an array.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.batch import Batch

        return self._with(
            Batch(size, drop_remainder, pad, padding_value, collate, across_epochs, objects)
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
        objects: bool | str | Sequence[str] = False,
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
            objects: as for `batch`.

        Returns:
            A pipeline of (lengths, batch): int64 of shape (n,), and components (n, longest, ...).

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.bucket import Bucket

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
                objects,
            )
        )

    def pack(
        self,
        length: int,
        *,
        padding_value: Any = 0,
        on_too_long: Literal["fail", "skip", "split"] = "fail",
        cut: bool = False,
        loss_mask: bool = False,
    ) -> Pipeline[Any]:
        """Pack sequences into rows of a fixed length, each into the first row that has room.

        Each sequence is in one row, and is never cut (except with ``on_too_long="split"``). The
        method is first fit (Johnson, "Near-optimal bin packing algorithms", 1973) with a bounded
        number of open rows.

        With ``cut=True``, sequences follow each other without gaps, as is usual for language
        models: a row is filled to its end, and the rest of a sequence that does not fit begins the
        next row, as a segment of its own. Only the last row of an epoch is padded.

        Args:
            length: how long a row is, >= 1.
            padding_value: fills the rest of a row; as for `batch`.
            on_too_long: what to do with a sequence that is longer than a row: ``"fail"`` raises,
                ``"skip"`` drops it, ``"split"`` cuts it into pieces. An empty sequence is dropped.
                With ``cut=True`` any length fits.
            cut: whether to fill rows to their ends, and to cut sequences there.
            loss_mask: whether to add a loss mask for a model that predicts the next entry.

        Returns:
            A pipeline of rows. For an example that is an array, a row is ``(row, segment_ids,
            positions)``; for a tuple, ``(*rows, segment_ids, positions)``; for a mapping, a dict
            with these two additional keys; for another container, it and both arrays. Segments
            count from 1 within a row, and 0 is padding. Positions count from 0 within a segment.
            Both are int32 of shape ``(length,)``. With ``loss_mask=True``, a third array
            ``loss_mask`` follows, bool of the same shape: whether the next entry of the row belongs
            to the same segment, so that it can be predicted from this one. It is false at the end
            of each segment, and for padding. All components of an example must have the same
            length. As in a batch, the first example fixes the dtypes, and the shapes of entries.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.pack import Pack

        return self._with(Pack(length, padding_value, on_too_long, cut=cut, loss_mask=loss_mask))

    def unbatch(self) -> Pipeline[Any]:
        """Split batches into their rows again.

        Rows of arrays are copies, which share no memory with the batch. A list has one row per
        example, and these are passed on as they are; but where `batch` was given examples that are
        lists, the list in their place has an array for each part. Stages in between keep that, and
        so does a function of yours that returns a list with as many parts.
        """
        from aioqueue.pipeline.stages.unbatch import Unbatch

        return self._with(Unbatch())

    def take(self, count: int) -> Pipeline[T_co]:
        """Keep the first examples of each epoch. The rest is neither prepared nor read.

        It bounds the stages before it. Through stages with a fixed number of examples for each one
        that they get, exactly as many items are read as are needed. Where that number depends on
        the data (`filter`, `flat`, ``drop_none``, `pack`), no more items are in flight than
        examples are missing.

        Args:
            count: how many, >= 0.

        Raises:
            InvalidArgumentError: `count` is not an int >= 0.
        """
        from aioqueue.pipeline.stages.take import TakeRows

        return self._with(TakeRows(count))

    def skip(self, count: int) -> Pipeline[T_co]:
        """Leave out the first of each epoch.

        Directly behind a source in memory that costs next to nothing; behind a `prepare`, workers
        prepare them. On ranks (`shard`) each rank leaves out as many of its own.

        Args:
            count: how many, >= 0. If an epoch has fewer, it is empty.

        Raises:
            InvalidArgumentError: it is no such int.
        """
        from aioqueue.pipeline.stages.skip import SkipRows

        return self._with(SkipRows(count))

    def enumerate(self, start: int = 0) -> Pipeline[tuple[int, T_co]]:
        """Number the examples of each epoch, in the order in which they come.

        A number is the place in this epoch (on ranks: of this rank), also after a resume.

        Args:
            start: the number of the first, >= 0.

        Returns:
            A pipeline of (number, example).

        Raises:
            InvalidArgumentError: it is no such int.
        """
        from aioqueue.pipeline.stages.enumerate import Enumerate

        return self._with(Enumerate(start))

    def window(
        self,
        size: int,
        stride: int = 1,
        *,
        drop_remainder: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        objects: bool | str | Sequence[str] = False,
    ) -> Pipeline[Any]:
        """Make windows of examples that follow each other, each a stride behind the one before.

        With a stride below the size they overlap. A window is made as `batch` makes a batch: an
        array, or one for each component. No window has examples of two epochs.

        Args:
            size: how many examples a window has, >= 1.
            stride: how many examples later the next one begins, >= 1; more than the size leaves out
                those in between.
            drop_remainder: leave out windows at the end of an epoch that have fewer examples.
            collate: makes a window of a list of examples instead. The examples are its own: they
                are copied for each window.
            objects: as for `batch`.

        Returns:
            A pipeline of windows: per component an array of shape ``(size, *shape)``.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.window import Window

        return self._with(Window(size, stride, drop_remainder, collate, objects))

    def mix(
        self,
        *others: Stages[E],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop: Literal["first", "all"] = "all",
        tokens: Callable[[Any], int] | None = None,
    ) -> Pipeline[T_co | E]:
        """Mix with other pipelines: each example is the next one of a randomly drawn pipeline.

        To have a small source several times in an epoch, mix in ``small.repeat(3)``.

        Args:
            *others: pipelines or sources, which have their own functions, workers and seeds.
            weights: one for each, this pipeline first, in any unit; ``None`` for equal weights.
            seed: for the draws; ``None`` derives one from the seed of the source.
            stop: ``"all"`` ends an epoch when all pipelines have ended theirs. ``"first"`` ends it
                when a pipeline is drawn that has no example left.
            tokens: returns how many tokens an example has, such as ``len``. Then the weights are
                shares of tokens and not of examples, and nothing is drawn: next comes an example of
                the pipeline that is furthest behind its share.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.mix import Mix

        return self._with(Mix(others, weights, seed, stop, tokens))

    def concat(self, *others: Stages[E]) -> Pipeline[T_co | E]:
        """Go through others behind this one, in every epoch.

        Args:
            *others: pipelines or sources, which have their own functions, workers and seeds. All of
                them begin to prepare at once.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.concat import Concat

        return self._with(Concat(others))

    @overload
    def zip(self, other: Stages[E], /, *, strict: bool = False) -> Pipeline[tuple[T_co, E]]: ...
    @overload
    def zip(self, *others: Stages[Any], strict: bool = False) -> Pipeline[tuple[Any, ...]]: ...
    def zip(self, *others: Stages[Any], strict: bool = False) -> Pipeline[Any]:
        """Put examples of others beside those of this one, place by place.

        What one of them leaves out (`filter`, ``on_error="skip"``) moves its later examples up, so
        that they are beside others: leave out what is to be left out behind `zip`.

        Args:
            *others: pipelines or sources, which have their own functions, workers and seeds.
            strict: whether an epoch in which some of them have more examples than others is a
                failure; else it ends with the shortest.

        Returns:
            A pipeline of tuples: an example of this one, and one of each other.

        Raises:
            InvalidArgumentError: an argument is wrong.
        """
        from aioqueue.pipeline.stages.zip import Zip

        return self._with(Zip(others, strict))

    def cache(
        self,
        path: str | PathLike[str] | None = None,
        *,
        key: str | None = None,
        on_stale: Literal["error", "rebuild"] = "error",
        progress: bool | None = None,
    ) -> Pipeline[T_co]:
        """Make the examples of the stages before once, and read them in every epoch.

        What is cached is epoch 0. A loop gets examples while they are made; if you leave it, the
        next one goes on. One process fills, and others wait for it.

        Args:
            path: a local folder for Arrow files, which are mapped into memory (extra ``parquet``).
                ``None`` keeps the examples in the memory of this process.
            key: stands for the code of your functions, the values that they use, and the times of
                files. ``None`` compares these themselves. The options of the source and the stages
                are compared in any case.
            on_stale: what to do if the folder was filled by another source, stages, code or
                values, or is damaged: ``"error"``, or ``"rebuild"``.
            progress: whether a bar shows how it is filled, as for `write`.

        Raises:
            InvalidArgumentError: an argument is wrong; or the source gives its items only once; or,
                without a key, the code uses something that cannot be compared with that of another
                run. A loop raises it if the cache is stale, if another process with other code has
                rebuilt it meanwhile, or if an example cannot be in a file.
            ModuleNotFoundError: pyarrow is not installed, or, without a key, cloudpickle.
        """
        from aioqueue.pipeline.cache import of as cached
        from aioqueue.pipeline.stages.chain import checked

        return checked(Pipeline(cached(self._pipeline(), path, key, on_stale, progress)))

    def prefetch(self, buffer_size: int = 2) -> Pipeline[T_co]:
        """Make the next batches ahead, in a thread of their own.

        Without it, stages after the last `prepare` run in your thread: cheap, with small batches.

        Args:
            buffer_size: how many batches may be ready, >= 1.

        Raises:
            InvalidArgumentError: `buffer_size` is not an int >= 1.
        """
        from aioqueue.pipeline.stages.prefetch import Prefetch

        return self._with(Prefetch(buffer_size))

    def to_device(self, device: Any, *, buffer_size: int = 2) -> Pipeline[Any]:
        """Copy the next batches to a device before you ask for them.

        A thread makes batches in a few host arrays, which it reuses, and copies them from there.
        For CUDA these arrays are pinned, and the copies run on a stream of their own, for which
        only the stream waits that is current when you take a batch. No later batch overwrites one.

        Arrays of numbers or bools (and NumPy scalars) become tensors, or arrays of JAX; tensors are
        copied, and others stay as they are, in tuples, mappings and lists. JAX turns 64-bit numbers
        into 32-bit ones, unless you set ``jax_enable_x64``. Only `take` and `shard` may follow.

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
        from aioqueue.pipeline.stages.to_device import ToDevice

        return self._with(ToDevice.of(device, buffer_size))

    def shard(
        self,
        rank: int,
        ranks: int,
        *,
        uneven: Literal["pad", "drop", "allow"] = "pad",
        by: Literal["item", "file"] = "item",
    ) -> Pipeline[T_co]:
        """Read one rank's shard of the source, in data-parallel training.

        The ranks divide one common order of items, place by place, and that of sources that were
        mixed in before. Each prepares only its own items. All ranks make the same number of
        batches; if one took fewer steps, the others would deadlock in all-reduce. If a rank skips
        items, it repeats its latest examples of the epoch in their place.

        A reader of files has no random access. So each rank reads all files, and drops the records
        of the others. With ``by="file"``, each rank reads its own files only.

        Args:
            rank: the rank of this program, ``0 <= rank < ranks``.
            ranks: how many ranks there are. All must have the same source, seed and stages.
            uneven: what to do if the items do not divide evenly: ``"pad"`` repeats the first items
                of the last round; ``"drop"`` drops that round; ``"allow"`` lets ranks differ.
            by: what the ranks divide: ``"item"``, one item after another; or ``"file"``, the files
                of a reader, each read by one rank as a whole. Ranks have different numbers of
                records then, so it needs ``uneven="allow"``.

        Raises:
            InvalidArgumentError: an argument is wrong; or the number of batches depends on the
                data, which works only with ``"allow"``.
        """
        from aioqueue.pipeline.stages.shard import Shard

        return self._with(Shard.of(rank, ranks, uneven, by))


@public("aioqueue.inputs", hints="inputs")
@hint_attributes("a pipeline")
class Pipeline(Stages[T_co], IterablePipeline[T_co]):
    """A source, and the stages that process its items. You make it by adding stages to a source.

    A pipeline is an immutable description. If you iterate over it, with ``for`` or ``async for``,
    you get its first epoch; `epochs` gives several. Each iteration makes its own queues, workers
    and coordinator, and leaving the loop in any way ends them. If a worker or a stage fails, your
    next step raises the failure, in an `ExceptionGroup` as a coordinator reports it.

    Attributes:
        source: where the items come from.
        stages: what is done with them, in order.
    """

    def _with(self, stage: BaseStage) -> Pipeline[Any]:
        # What runs a pipeline is imported here, so that the first batch need not wait for it.
        from aioqueue.pipeline import epochs  # noqa: F401
        from aioqueue.pipeline.stages.chain import checked

        return checked(Pipeline(self.source, (*self.stages, stage)))

    def _pipeline(self) -> Pipeline[Any]:
        return self


hint_methods(
    Pipeline,
    "inputs",
    methods_of(RunMethods, Stages),
    dict.fromkeys(("prepare", "flat", "map_batches"), tuple(PrepareOptions.__optional_keys__)),
)
