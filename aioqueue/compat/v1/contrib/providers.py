"""``tf.contrib.slim``: its data sets, decoders and readers; layers belong to your framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from aioqueue.compat.v1 import gfile
from aioqueue.compat.v1.absent import namespace
from aioqueue.compat.v1.coordination.coordinator import Coordinator
from aioqueue.compat.v1.coordination.runners import (
    QueueRunner,
    add_queue_runner,
    start_queue_runners,
)
from aioqueue.compat.v1.core import dtypes as types
from aioqueue.compat.v1.core import graph
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.inputs.batchers import fifo_class, summarize_fullness
from aioqueue.compat.v1.inputs.producers import string_input_producer
from aioqueue.compat.v1.ops import arrays, control, math, variables
from aioqueue.compat.v1.ops import sparse as sparse_ops
from aioqueue.compat.v1.ops.casting import cast
from aioqueue.compat.v1.ops.images import codecs
from aioqueue.compat.v1.ops.math import add_n
from aioqueue.compat.v1.ops.sparse import sparse_reshape
from aioqueue.compat.v1.ops.text import decode_raw
from aioqueue.compat.v1.parsing.parsing import FixedLenFeature, parse_single_example
from aioqueue.compat.v1.queues.queues import FIFOQueue, QueueBase, RandomShuffleQueue


class DataDecoder:
    """Base class of decoders: what makes items, such as a picture, of a record."""

    def decode(self, data: Any, items: Sequence[str] | None = None) -> list[Any]:
        """The tensors of some items."""
        raise NotImplementedError

    def list_items(self) -> list[str]:
        """The names of the items that it can make."""
        raise NotImplementedError


class DataProvider:
    """The tensors of an example, by the names of its items."""

    def __init__(self, items_to_tensors: Mapping[str, Any], num_samples: int) -> None:
        self._items_to_tensors = dict(items_to_tensors)
        self._num_samples = num_samples

    def get(self, items: Sequence[str]) -> list[Any]:
        """The tensors of some items."""
        unknown = [one for one in items if one not in self._items_to_tensors]
        if unknown:
            raise ValueError(f"Items {unknown} not in {self.list_items()}")
        return [self._items_to_tensors[one] for one in items]

    def list_items(self) -> list[str]:
        """The names of the items."""
        return list(self._items_to_tensors)

    def num_samples(self) -> int:
        """How many examples there are."""
        return self._num_samples


class Dataset(SimpleNamespace):
    """A data set."""

    def __init__(
        self,
        data_sources: Any,
        reader: Any,
        decoder: Any,
        num_samples: int,
        items_to_descriptions: Any,
        **kwargs: Any,
    ) -> None:
        given = data_sources, reader, decoder, num_samples, items_to_descriptions
        names = ["data_sources", "reader", "decoder", "num_samples", "items_to_descriptions"]
        super().__init__(**dict(zip(names, given, strict=True)), **kwargs)


class ParallelReader:
    """Several readers whose records go through one queue, in the order in which they come."""

    def __init__(
        self,
        reader_class: Callable[..., Any],
        common_queue: QueueBase,
        num_readers: int = 4,
        reader_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if num_readers < 1:
            raise ValueError(f"num_readers: got {num_readers!r}; expected at least 1")
        self._readers = [reader_class(**(reader_kwargs or {})) for _ in range(num_readers)]
        self.common_queue: QueueBase = common_queue
        self.num_readers: int = num_readers

    def read(self, queue: QueueBase, name: str | None = None) -> Any:
        """Key and value of a record; adds a runner that fills the queue."""
        self._fill([self.common_queue.enqueue(one.read(queue)) for one in self._readers])
        return self.common_queue.dequeue(name=name)

    def read_up_to(self, queue: QueueBase, num_records: int, name: str | None = None) -> Any:
        """Keys and values of several records, of fewer at the end; adds a runner."""
        self._fill(
            [
                self.common_queue.enqueue_many(one.read_up_to(queue, num_records))
                for one in self._readers
            ]
        )
        return self.common_queue.dequeue_up_to(num_records, name=name)

    def _fill(self, enqueues: list[Any]) -> None:
        add_queue_runner(QueueRunner(self.common_queue, enqueues))

    def num_records_produced(self, name: str | None = None) -> graph.Tensor:
        """How many records the readers have read, int64."""
        return add_n([one.num_records_produced() for one in self._readers], name=name)

    def num_work_units_completed(self, name: str | None = None) -> graph.Tensor:
        """How many files the readers have finished, int64."""
        return add_n([one.num_work_units_completed() for one in self._readers], name=name)


def parallel_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    num_epochs: int | None = None,
    num_readers: int = 4,
    reader_kwargs: Mapping[str, Any] | None = None,
    shuffle: bool = True,
    dtypes: Sequence[Any] | None = None,
    capacity: int = 256,
    min_after_dequeue: int = 128,
    seed: int | None = None,
    scope: str | None = None,
) -> Any:
    """Key and value of a record of some files, which several readers read at once."""
    files = get_data_files(data_sources)
    kinds = list(dtypes or [types.string, types.string])
    with name_scope(scope, "parallel_read", []):
        names = string_input_producer(files, num_epochs, shuffle, seed, name="filenames")
        queue: QueueBase
        if shuffle:
            queue = RandomShuffleQueue(
                capacity, min_after_dequeue, kinds, seed=seed, name="common_queue"
            )
        else:
            queue = FIFOQueue(capacity, kinds, name="common_queue")
        summarize_fullness(queue, capacity)
        return ParallelReader(reader_class, queue, num_readers, reader_kwargs).read(names)


def single_pass_read(
    data_sources: Any,
    reader_class: Callable[..., Any],
    reader_kwargs: Mapping[str, Any] | None = None,
    scope: str | None = None,
) -> Any:
    """Key and value of a record of some files, each read once, one after another."""
    files = get_data_files(data_sources)
    with name_scope(scope, "single_pass_read", []):
        names = string_input_producer(
            files, num_epochs=1, shuffle=False, capacity=1, name="filenames"
        )
        return reader_class(**(reader_kwargs or {})).read(names)


def get_data_files(data_sources: Any) -> list[str]:
    """The names of files that names and patterns stand for."""
    if isinstance(data_sources, list | tuple):
        files = [path for one in data_sources for path in get_data_files(one)]
    elif any(mark in data_sources for mark in "*?["):
        files = gfile.Glob(data_sources)
    else:
        files = [data_sources]
    if not files:
        raise ValueError(f"No data files found in {data_sources}")
    return files


class DatasetDataProvider(DataProvider):
    """The tensors of an example of a data set, and the key of its record."""

    def __init__(
        self,
        dataset: Dataset,
        num_readers: int = 1,
        reader_kwargs: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        num_epochs: int | None = None,
        common_queue_capacity: int = 256,
        common_queue_min: int = 128,
        record_key: str = "record_key",
        seed: int | None = None,
        scope: str | None = None,
    ) -> None:
        key, data = parallel_read(
            dataset.data_sources,
            dataset.reader,
            num_epochs,
            num_readers,
            reader_kwargs,
            shuffle,
            capacity=common_queue_capacity,
            min_after_dequeue=common_queue_min,
            seed=seed,
            scope=scope,
        )
        items = dataset.decoder.list_items()
        if record_key in items:
            raise ValueError(
                f"The item name used for `record_key` cannot also be used for a dataset item:"
                f" {record_key}"
            )
        tensors = dataset.decoder.decode(data, items)
        pairs = zip([*items, record_key], [*tensors, key], strict=True)
        super().__init__(dict(pairs), dataset.num_samples)


def prefetch_queue(
    tensors: Sequence[Any] | Mapping[str, Any],
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> QueueBase:
    """A queue of the values of some tensors, and a runner that fills it."""
    keys = sorted(tensors) if isinstance(tensors, Mapping) else None
    listed = [tensors[key] for key in keys] if isinstance(tensors, Mapping) and keys else tensors
    with name_scope(name, "prefetch_queue", list(listed)):
        found = [convert_to_tensor(one) for one in listed]
        queue = fifo_class(dynamic_pad)(
            capacity=capacity,
            dtypes=[one.dtype for one in found],
            shapes=[one.shape for one in found],
            names=keys,
            shared_name=shared_name,
        )
        example = dict(zip(keys, found, strict=True)) if keys else found
        add_queue_runner(QueueRunner(queue, [queue.enqueue(example)] * num_threads))
        summarize_fullness(queue, capacity)
        return queue


@contextmanager
def QueueRunners(session: Any) -> Iterator[None]:  # noqa: N802  # TensorFlow's name
    """Run the graph's queue runners within the block; stop and join their threads at its end."""
    coord = Coordinator()
    threads = start_queue_runners(sess=session, coord=coord, daemon=True, start=True)
    try:
        yield
    finally:
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=120)


SIDES = ("ymin", "xmin", "ymax", "xmax")


class ItemHandler:
    """Base class of what makes an item of the tensors of some features."""

    def __init__(self, keys: str | Sequence[str]) -> None:
        self.keys: list[str] = [keys] if isinstance(keys, str) else list(keys)

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """The item."""
        raise NotImplementedError


class ItemHandlerCallback(ItemHandler):
    """Makes an item by a function."""

    def __init__(self, keys: str | Sequence[str], func: Callable[..., Any]) -> None:
        super().__init__(keys)
        self._func = func

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        return self._func(keys_to_tensors)


def _dense(value: Any, default: Any = None) -> Any:
    if isinstance(value, sparse_ops.SparseTensor):
        return sparse_ops.sparse_tensor_to_dense(value, default)
    return value


class Tensor(ItemHandler):
    """One feature as a dense tensor."""

    def __init__(
        self,
        tensor_key: str,
        shape_keys: str | Sequence[str] | None = None,
        shape: Any = None,
        default_value: Any = 0,
    ) -> None:
        if shape_keys and shape is not None:
            raise ValueError("Cannot specify both shape_keys and shape parameters.")
        listed = [shape_keys] if isinstance(shape_keys, str) else list(shape_keys or ())
        super().__init__([tensor_key, *listed])
        self._tensor_key = tensor_key
        self._shape_keys = listed
        self._shape = shape
        self._default_value = default_value

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        tensor = keys_to_tensors[self._tensor_key]
        shape = self._shape
        if self._shape_keys:
            sizes = [_dense(keys_to_tensors[key]) for key in self._shape_keys]
            shape = arrays.reshape(arrays.stack(sizes), [-1])
        if isinstance(tensor, sparse_ops.SparseTensor):
            if shape is not None:
                tensor = sparse_reshape(tensor, cast(shape, types.int64))
            default = self._default_value
            if tensor.dtype == types.string and default == 0:
                default = b""
            return sparse_ops.sparse_tensor_to_dense(tensor, default)
        return tensor if shape is None else arrays.reshape(tensor, shape)


class LookupTensor(Tensor):
    """One feature, looked up in a table."""

    def __init__(
        self,
        tensor_key: str,
        table: Any,
        shape_keys: str | Sequence[str] | None = None,
        shape: Any = None,
        default_value: Any = "",
    ) -> None:
        super().__init__(tensor_key, shape_keys, shape, default_value)
        self._table = table

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        return self._table.lookup(super().tensors_to_item(keys_to_tensors))


class SparseTensor(ItemHandler):
    """A sparse vector of two features: where its values are, and what they are."""

    def __init__(
        self,
        indices_key: str | None = None,
        values_key: str | None = None,
        shape_key: str | None = None,
        shape: Any = None,
        densify: bool = False,
        default_value: Any = 0,
    ) -> None:
        self._indices_key = indices_key or "indices"
        self._values_key = values_key or "values"
        self._shape_key = shape_key
        self._shape = shape
        self._densify = densify
        self._default_value = default_value
        keys = [self._indices_key, self._values_key]
        super().__init__([*keys, shape_key] if shape_key else keys)

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        places = keys_to_tensors[self._indices_key]
        values = keys_to_tensors[self._values_key]
        shape: Any = places.dense_shape
        if self._shape_key:
            shape = keys_to_tensors[self._shape_key]
            shape = shape.values if isinstance(shape, sparse_ops.SparseTensor) else shape
        elif self._shape is not None:
            shape = self._shape
        indices = arrays.expand_dims(places.values, 1)
        sparse = sparse_ops.SparseTensor(indices, values.values, shape)
        if not self._densify:
            return sparse
        return sparse_ops.sparse_tensor_to_dense(sparse, self._default_value)


class Image(ItemHandler):
    """A picture of a feature with the contents of its file. Needs the extra ``images``."""

    def __init__(
        self,
        image_key: str | None = None,
        format_key: str | None = None,
        shape: Any = None,
        channels: int = 3,
        dtype: Any = types.uint8,
        repeated: bool = False,
        dct_method: str = "",
    ) -> None:
        self._image_key = image_key or "image/encoded"
        self._format_key = format_key or "image/format"
        super().__init__([self._image_key, self._format_key])
        self._shape = shape
        self._channels = channels
        self._dtype = types.as_dtype(dtype)
        self._repeated = repeated

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        contents, kind = keys_to_tensors[self._image_key], keys_to_tensors[self._format_key]
        if self._repeated:
            return control.map_fn(lambda one: self._decoded(one, kind), contents, self._dtype)
        return self._decoded(contents, kind)

    def _decoded(self, contents: Any, kind: Any) -> Any:
        def from_file() -> Any:
            if self._dtype == types.uint16:
                return codecs.decode_png(contents, self._channels, types.uint16)
            pixels = codecs.decode_image(contents, self._channels, expand_animations=False)
            return cast(pixels, self._dtype)

        def from_pixels() -> Any:
            return decode_raw(contents, self._dtype)

        is_raw = math.logical_or(math.equal(kind, "raw"), math.equal(kind, "RAW"))
        picture = control.cond(is_raw, from_pixels, from_file)
        picture.set_shape(None)
        if self._shape is not None:
            return arrays.reshape(picture, self._shape)
        picture.set_shape([None, None, self._channels])
        return picture


class BoundingBox(ItemHandler):
    """Boxes of four features with their sides: ``[n, 4]``."""

    def __init__(self, keys: Sequence[str] | None = None, prefix: str = "") -> None:
        sides = list(SIDES if keys is None else keys)
        if len(sides) != len(SIDES):
            raise ValueError(f"BoundingBox expects 4 keys but got {len(sides)}")
        self._prefix = prefix
        super().__init__([prefix + one for one in sides])

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        sides = []
        for key in self.keys:
            side = keys_to_tensors[key]
            values = side.values if isinstance(side, sparse_ops.SparseTensor) else side
            sides.append(arrays.expand_dims(values, 0))
        return arrays.transpose(arrays.concat(sides, 0))


class TFExampleDecoder(DataDecoder):
    """Makes items of a serialized ``tf.train.Example``. Needs the extra ``tfrecord``."""

    def __init__(
        self, keys_to_features: Mapping[str, Any], items_to_handlers: Mapping[str, ItemHandler]
    ) -> None:
        self._keys_to_features = dict(keys_to_features)
        self._items_to_handlers = dict(items_to_handlers)

    def list_items(self) -> list[str]:
        return list(self._items_to_handlers)

    def decode(self, data: Any, items: Sequence[str] | None = None) -> list[Any]:
        example = parse_single_example(data, self._keys_to_features)
        for key, feature in sorted(self._keys_to_features.items()):
            if isinstance(feature, FixedLenFeature):
                example[key] = arrays.reshape(example[key], feature.shape)
        made = []
        for item in items or self.list_items():
            handler = self._items_to_handlers[item]
            made.append(handler.tensors_to_item({key: example[key] for key in handler.keys}))
        return made


SLIM = f"{__package__}.slim"


def _part(name: str, text: str, *things: Any) -> ModuleType:
    return namespace(f"{SLIM}.{name}", f"``slim.{name}``: {text}.", *things)


slim = namespace(
    SLIM,
    __doc__ or "",
    *(variables.create_global_step, variables.get_global_step, variables.get_or_create_global_step),
    _part("data_decoder", "what decoders of records have in common", DataDecoder),
    _part("data_provider", "tensors, by the names of their items", DataProvider),
    _part("dataset", "where a data set is, and how it is read and decoded", Dataset),
    _part(
        "dataset_data_provider", "the tensors of a data set read in parallel", DatasetDataProvider
    ),
    _part(
        "parallel_reader",
        "several readers that fill one queue of records",
        *(ParallelReader, get_data_files, parallel_read, single_pass_read),
    ),
    _part("prefetch_queue", "a queue of batches that are made ahead", prefetch_queue),
    _part("queues", "queue runners for the time of a block", QueueRunners),
    _part(
        "tfexample_decoder",
        "items made of the features of serialized examples",
        *(BoundingBox, Image, ItemHandler, ItemHandlerCallback),
        *(LookupTensor, SparseTensor, TFExampleDecoder, Tensor),
    ),
)
