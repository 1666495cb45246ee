"""What to write here instead of names that other libraries have, in one table; and other misuses.

The table answers unknown attributes, unknown names of our packages and unknown keyword arguments.
An advice is code, perhaps followed by ``;`` and a remark; a test looks up all of them. In the
tables of attributes it is a member of the thing, unless it begins with ``aioqueue.`` or
``import``. In those of keywords there are several for one name, and the first that the function
takes is given; one that begins with ``.``, or that names a module, fits every function.

Also here: ``in`` on streams, where to look is to take; and overrides of methods that the other
face of a queue would pass by.
"""

from __future__ import annotations

import functools
import inspect
import opcode
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, NoReturn, TypeVar

__all__ = (
    "ATTRIBUTES",
    "KEYWORDS",
    "NAMES",
    "hint_keywords",
    "hint_methods",
    "no_attribute",
    "no_name",
    "not_searched",
    "refuse_overrides",
    "unexpected_keyword",
)
AdviceT = TypeVar("AdviceT", str, tuple[str, ...])


def _each(names: str, advice: AdviceT) -> dict[str, AdviceT]:
    """The same advice for several names."""
    return dict.fromkeys(names.split(), advice)


_STOPPED: Final = "close(); a Coordinator joins the workers"

ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "a queue": {
        **_each("put append send", "enqueue(element)"),
        **_each("put_nowait send_nowait", "enqueue_nowait(element)"),
        **_each("get pop popleft receive", "dequeue()"),
        **_each("get_nowait receive_nowait", "dequeue_nowait()"),
        "qsize": "size()",
        "empty": "size() == 0",
        "full": "size() == queue.capacity",
        **_each("maxsize maxlen", "capacity"),
        **_each("shutdown close_queue aclose", "close()"),
        **_each("is_shutdown closed", "is_closed()"),
        **_each("join task_done join_thread", _STOPPED),
        "sync_q": "sync",
        "async_q": "aio",
        **_each("extend put_many put_batch put_nowait_batch", "enqueue_many(batch)"),
        "cancel_join_thread": "close(cancel_pending_enqueues=True)",
        **_each("get_many get_batch", "dequeue_many(n)"),
        "get_nowait_batch": "dequeue_up_to(n, max_wait=0)",
        "stats": "statistics()",
    },
    "a queue on Ray": {
        **_each("put put_async put_nowait", "enqueue(element)"),
        **_each("get get_async get_nowait", "dequeue()"),
        **_each("put_nowait_batch put_batch", "enqueue_many(batch)"),
        **_each("get_nowait_batch", "dequeue_up_to(n, max_wait=0)"),
        **_each("get_batch", "dequeue_many(n)"),
        **_each("qsize size empty full maxsize", "statistics()"),
        **_each("join task_done", "close(); a Coordinator joins the workers"),
        **_each("ack task_complete", "commit()"),
        "shutdown": "close(); delete() also ends its actor",
    },
    "a source or pipeline": {
        **_each(
            "map apply random_map map_with_index select_columns remove_columns rename_column "
            "rename_columns cast_column with_transform set_transform decode to_tuple "
            "map_dict map_tuple compose pipe",
            "prepare(function)",
        ),
        **_each("flat_map flatten", "flat(function)"),
        **_each(
            "interleave sample_from_datasets choose_from_datasets concatenate union",
            "mix(other)",
        ),
        **_each(
            "repeat as_numpy_iterator make_one_shot_iterator to_iter_dataset to_map_datapipe "
            "iter_rows to_iterable_dataset",
            "epochs(count)",
        ),
        "padded_batch": "batch(size, pad=True)",
        **_each("ragged_batch dense_to_ragged_batch window", "batch(size, collate=list)"),
        **_each("bucket_by_sequence_length group_by_window", "bucket(boundaries, batch_size)"),
        "rebatch": "unbatch().batch(size)",
        **_each("unbatched disaggregate", "unbatch()"),
        "map_and_batch": "prepare(function).batch(size)",
        "filter_map": "prepare(function, drop_none=True)",
        "ignore_errors": 'prepare(function, on_error="skip")',
        **_each("prefetch_to_device with_format set_format to_torch", "to_device(device)"),
        "cache": "prepare(function); to keep examples in memory, give items() a list of them",
        "snapshot": "prepare(function); to keep examples on disk, write them with a TFRecordWriter",
        "enumerate": "prepare(function); enumerate(pipeline) counts, and items know their index",
        "zip": "prepare(function); zip() of Python pairs two lists, or two pipelines",
        "element_spec": "take(1); look at one example",
        "seed_with": "shuffle(size, seed=seed)",
        **_each("window_shuffle random_shuffle", "shuffle(size)"),
        "pin_memory": 'to_device("cuda")',
        **_each("state_dict get_state", "epochs(...).state_dict()"),
        **_each("load_state_dict set_state", "epochs(..., resume=state)"),
        "set_epoch": "epochs(count, start=epoch)",
        **_each("header limit with_epoch slice", "take(count)"),
        "cycle": "epochs()",
        **_each("in_batches_of iter_batches batched aggregate", "batch(size)"),
        "collate": "batch(size, collate=function)",
        **_each("sharding_filter split_dataset_by_node split_by_node", "shard(rank, ranks)"),
        "parallel_map": "prepare(function, workers=4)",
        "map_batches": "batch(size).prepare(function)",
        "iter_torch_batches": "batch(size).to_device(device)",
        "select": "filter(predicate)",
        "add_sink": "prefetch(buffer_size)",
    },
    "a run of epochs": {
        "get_state": "state_dict()",
        **_each("set_state restore", "load_state_dict(state)"),
        "save": "state_dict(); inputs.save_position writes it to a file",
        **_each("stop shutdown join cancel", "close()"),
        "stats": "statistics()",
        "set_epoch": "load_state_dict(state); or pipeline.epochs(count, start=epoch)",
    },
    "an epoch": {
        "get_state": "state_dict()",
        "index": "done",
        "epoch": "number",
        "stats": "explain(); epochs.statistics() has the numbers",
        **_each(
            "load_state_dict set_state",
            "state_dict(); give it to pipeline.epochs(count, resume=state)",
        ),
    },
    "a coordinator": {
        **_each("create_task start_soon submit spawn run", "start(runner)"),
        **_each("add add_task", "register(worker)"),
        **_each("cancel cancel_scope set stop", "request_stop()"),
        "abort": "request_stop(error)",
        **_each("shutdown close", "request_stop(); join() waits for the workers"),
        **_each("wait gather", "join()"),
        **_each("is_set stopped", "should_stop()"),
        "clear": "clear_stop()",
        "exception": "raise_requested_exception()",
    },
}
"""What is written here instead of an attribute of a thing, by what the thing is in words."""

_QUEUES: Final = {
    **_each(
        "Queue SimpleQueue JoinableQueue deque open_memory_channel create_memory_object_stream",
        "aioqueue.FIFOQueue",
    ),
    "LifoQueue": "aioqueue.PriorityQueue; give later elements smaller priorities",
    **_each("ShuffleQueue RandomQueue", "aioqueue.RandomShuffleQueue"),
    "PaddedQueue": "aioqueue.PaddingFIFOQueue",
    "Empty": "aioqueue.QueueEmpty",
    "Full": "aioqueue.QueueFull",
    **_each("ShutDown QueueShutDown ClosedResourceError", "aioqueue.QueueClosedError"),
    **_each("EndOfChannel EndOfStream OutOfRange", "aioqueue.OutOfRangeError"),
    **_each(
        "StopToken TaskGroup create_task_group open_nursery ThreadPoolExecutor",
        "aioqueue.Coordinator",
    ),
    **_each("Semaphore BatchQueue", "aioqueue.Batcher"),
}
_DATASETS: Final = {
    **_each(
        "Dataset MapDataset from_list from_items string_input_producer input_producer",
        "aioqueue.inputs.items",
    ),
    **_each("IterDataset IterableDataset from_generator", "aioqueue.inputs.from_iterable"),
    **_each("DataPipe PipelineBuilder", "aioqueue.inputs.Pipeline"),
    **_each("DataLoader StatefulDataLoader", "aioqueue.torch.DataLoader"),
    **_each("WebDataset WebLoader read_webdataset", "aioqueue.inputs.read_tar"),
    "load_dataset": "aioqueue.inputs.items; give it the dataset",
    **_each("from_tensor_slices slice_input_producer", "aioqueue.inputs.arrays"),
    **_each("range range_input_producer", "aioqueue.inputs.numbers"),
    **_each("list_files glob match_filenames_once", "aioqueue.inputs.files"),
    **_each("TFRecordDataset TFRecordReader", "aioqueue.inputs.read_tfrecords"),
    **_each("TextLineDataset TextLineReader read_text", "aioqueue.inputs.read_lines"),
    "CsvDataset": "aioqueue.inputs.read_csv",
    **_each("FixedLengthRecordDataset FixedLengthRecordReader", "aioqueue.inputs.read_records"),
    **_each("WholeFileReader read_binary_files", "aioqueue.inputs.read_whole_files"),
    "batch_join": "aioqueue.inputs.batch",
    "shuffle_batch_join": "aioqueue.inputs.shuffle_batch",
    **_each(
        "concatenate_datasets interleave_datasets sample_from_datasets choose_from_datasets "
        "RandomMix",
        "aioqueue.inputs.mix",
    ),
    **_each(
        "DistributedSampler split_dataset_by_node ShardOptions",
        "aioqueue.inputs.Pipeline.shard",
    ),
    "tee": "aioqueue.inputs.broadcast",
}
_IN_INPUTS: Final = (
    *("Pipeline", "Source", "Retry", "Preemption", "arrays", "batch", "broadcast", "files"),
    *("bucket_by_sequence_length", "from_iterable", "items", "mix", "numbers", "prepare"),
    *("read_csv", "read_lines", "read_parquet", "read_tar", "read_tfrecords", "shuffle_batch"),
    *("load_position", "merge_positions", "save_position"),
)
_ELSEWHERE: Final = {
    **{name: f"aioqueue.inputs.{name}" for name in _IN_INPUTS},
    "torch": "import aioqueue.torch",
    "ray": "import aioqueue.ray",
    "testing": "import aioqueue.testing",
    "compat": "import aioqueue.compat.v1",
}
_IN_TORCH: Final = (
    *("Dataset", "IterableDataset", "TensorDataset", "Subset", "ConcatDataset", "Sampler"),
    *("RandomSampler", "BatchSampler", "WeightedRandomSampler", "default_collate"),
    *("default_convert", "get_worker_info", "random_split"),
)
_IN_CORE: Final = (
    *("AsyncQueue", "LooperTask", "Monitor", "QueueState", "Statistics", "explain"),
    *("OutOfRangeError", "QueueClosedError", "QueueEmpty", "QueueFull", "StillRunningError"),
)

NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "aioqueue": {
        **_QUEUES,
        **_DATASETS,
        **_ELSEWHERE,
        "LooperThread": "aioqueue.sync.LooperThread",
        "CancelScope": "aioqueue.sync.CancelScope",
        "BlockingQueue": "aioqueue.sync.BlockingQueue",
    },
    "aioqueue.sync": {
        **_DATASETS,
        **_ELSEWHERE,
        **{name: f"aioqueue.{name}" for name in _IN_CORE},
        **{
            name: advice.replace("aioqueue.", "aioqueue.sync.")
            if advice.split(";")[0].endswith(("Queue", "Coordinator", "Batcher"))
            else advice
            for name, advice in _QUEUES.items()
        },
    },
    "aioqueue.inputs": {
        **_QUEUES,
        **_DATASETS,
        **{name: f"aioqueue.{name}" for name in (*_IN_CORE, "Coordinator", "FIFOQueue")},
        "decode_tfrecords": "aioqueue.inputs.read_tfrecords",
        "map": "aioqueue.inputs.Pipeline.prepare",
        "filter": "aioqueue.inputs.Pipeline.filter",
        "shuffle": "aioqueue.inputs.Pipeline.shuffle",
        "prefetch": "aioqueue.inputs.Pipeline.prefetch",
        "merge_states": "aioqueue.inputs.merge_positions",
        "PreemptionWatcher": "aioqueue.inputs.Preemption",
    },
    "aioqueue.torch": {
        **{name: f"torch.utils.data.{name}" for name in _IN_TORCH},
        "StatefulDataLoader": "aioqueue.torch.DataLoader",
        "DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
        "to_device": "aioqueue.inputs.Pipeline.to_device",
        "Pipeline": "aioqueue.inputs.Pipeline",
    },
}
"""What is written here instead of a name, by the package in which it was looked for."""

_WORKERS: Final = ("workers", ".prepare(function, workers=4)")
_FUNCTION: Final = ("function", ".prepare(function)")
_READ_AHEAD: Final = ("buffer_size", ".prefetch(buffer_size)")
_ORDERED: Final = ("ordered", ".prepare(function, ordered=True)")
_PATHS: Final = ("paths", "pattern", "aioqueue.inputs.files(pattern)")
_RANKS: Final = ("ranks", "shard=(rank, ranks)", ".shard(rank, ranks)")
_RANK: Final = ("rank", "shard=(rank, ranks)", ".shard(rank, ranks)")
_EPOCHS: Final = ("epochs", "count", ".epochs(count)")
_SEED: Final = ("seed", ".shuffle(size, seed=seed)")
_CAPACITY: Final = ("capacity", "n", "aioqueue.FIFOQueue(capacity)")
_MAX_BATCH: Final = ("max_batch", "aioqueue.Batcher(function, max_batch=32)")
_MAX_WAIT: Final = ("max_wait", "asyncio.timeout(seconds)")
_DEVICE: Final = (".to_device(device)",)
_SKIP: Final = ('on_error="skip"', '.prepare(function, on_error="skip")')
_IN_FLIGHT: Final = ("max_in_flight", ".prepare(function, max_in_flight=64)")

KEYWORDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "queues": {
        **_each(
            "maxsize max_size maxlen size limit buffer_size max_buffer_size max_queue_size",
            _CAPACITY,
        ),
        **_each("dtype types", ("dtypes", "aioqueue.FIFOQueue(capacity, dtypes)")),
        "shape": ("shapes", "aioqueue.FIFOQueue(capacity, dtypes, shapes)"),
        "columns": ("names", "aioqueue.FIFOQueue(capacity, dtypes, shapes, names)"),
        "shared_name": ("name", "aioqueue.FIFOQueue(capacity, name=name)"),
        "min_size": ("min_after_dequeue", "aioqueue.RandomShuffleQueue(capacity, 10)"),
        "shuffle": ("seed", "aioqueue.RandomShuffleQueue(capacity, min_after_dequeue)"),
        **_each(
            "maxbytes max_memory",
            ("max_bytes", "aioqueue.FIFOQueue(capacity, max_bytes=2**30)"),
        ),
        "immediate": ("cancel_pending_enqueues", ".close(cancel_pending_enqueues=True)"),
        "drop_last": ("drop_remainder", ".batches(n, drop_remainder=True)"),
        "batch_size": ("n", ".dequeue_many(n)"),
        "timeout": ("asyncio.timeout(seconds)",),
        "loop": ("name", ".sync"),
    },
    "inputs": {
        "drop_last": (
            "drop_remainder",
            "allow_smaller_final_batch=False",
            ".batch(size, drop_remainder=True)",
        ),
        "drop_remainder": (
            "allow_smaller_final_batch=False",
            ".batch(size, drop_remainder=True)",
        ),
        "allow_smaller_final_batch": ("drop_remainder", ".batch(size, drop_remainder=True)"),
        "batch_size": ("size", ".batch(size)"),
        **_each(
            "num_workers num_parallel_calls num_parallel_batches cycle_length block_length "
            "num_threads worker_count read_options num_proc concurrency max_workers n_jobs "
            "processes threads max_concurrency",
            _WORKERS,
        ),
        **_each(
            "prefetch_factor worker_buffer_size prefetch_buffer_size prefetch read_ahead",
            _READ_AHEAD,
        ),
        **_each("collate_fn batch_fn", ("collate", ".batch(size, collate=function)")),
        **_each("pin_memory pin_memory_device device", _DEVICE),
        **_each("in_order deterministic output_order preserve_order", _ORDERED),
        "timeout": ("item_timeout", ".prepare(function, item_timeout=60)"),
        **_each("sampler batch_sampler", ("aioqueue.inputs.items(sequence)",)),
        **_each("generator random_state random_seed rng", _SEED),
        **_each("persistent_workers reshuffle_each_iteration", (".epochs(count)",)),
        **_each(
            "multiprocessing_context mp_context use_processes",
            ('where="process"', '.prepare(function, where="process")'),
        ),
        **_each(
            "worker_init_fn map_func transformations operations transform fn func",
            _FUNCTION,
        ),
        **_each("num_replicas world_size num_shards shard_options shard_count", _RANKS),
        "buffer_size": ("size", "capacity", ".prefetch(buffer_size)"),
        "padded_shapes": ("pad=True", "dynamic_pad=True", ".batch(size, pad=True)"),
        "padding_values": ("padding_value", ".batch(size, pad=True)"),
        **_each("shard_index index", _RANK),
        "num_epochs": _EPOCHS,
        "bucket_boundaries": ("boundaries", ".bucket(boundaries, batch_size)"),
        "bucket_batch_sizes": ("batch_size", ".bucket(boundaries, batch_size)"),
        **_each(
            "element_length_func length_fn",
            ("length", ".bucket(boundaries, batch_size, length=len)"),
        ),
        "pad_to_bucket_boundary": ("pad_to_boundary", ".bucket(boundaries, batch_size)"),
        "stop_on_empty_dataset": ('stop="first"', '.mix(other, stop="first")'),
        "compression_type": ("compression", "aioqueue.inputs.read_tfrecords(paths)"),
        **_each("filenames file_pattern data_files urls path", _PATHS),
        "record_defaults": ("dtypes", "aioqueue.inputs.read_csv(paths, dtypes)"),
        "select_cols": ("columns", "aioqueue.inputs.read_csv(paths, dtypes)"),
        "field_delim": ("delimiter", "aioqueue.inputs.read_csv(paths, dtypes)"),
        "header": ("skip_header_lines=1", "aioqueue.inputs.read_csv(paths, dtypes)"),
        "record_length": ("record_bytes", "aioqueue.inputs.read_records(paths, 32)"),
        "dynamic_pad": ("pad", ".batch(size, pad=True)"),
        "pad": ("dynamic_pad", ".batch(size, pad=True)"),
        "enqueue_many": (".unbatch()",),
        "num_records": ("limit", "count", ".take(count)"),
        **_each(
            "window_size local_shuffle_buffer_size bufsize initial shuffle_buffer",
            ("size", ".shuffle(size)"),
        ),
        "batched": (".batch(size)",),
        "probabilities": ("weights", ".mix(other, weights=[1, 2])"),
        "stopping_strategy": ("stop", '.mix(other, stop="first")'),
        "num_cpus": ('ray={"num_cpus": 2}', '.prepare(function, where="ray")'),
        "max_retries": ("on_error=aioqueue.inputs.Retry(3)", "aioqueue.inputs.Retry(3)"),
        "retries": ("times", "on_error=aioqueue.inputs.Retry(3)", "aioqueue.inputs.Retry(3)"),
        **_each("handler ignore_errors skip_errors", _SKIP),
        "shardshuffle": ("shuffle=True", "aioqueue.inputs.files(pattern, shuffle=True)"),
        "nodesplitter": (".shard(rank, ranks)",),
        "executor": ("where", '.prepare(function, where="thread")'),
        "queue_size": ("buffer_size", "capacity", ".prefetch(buffer_size)"),
        "maxsize": ("capacity", "buffer_size", ".prefetch(buffer_size)"),
        "in_flight": _IN_FLIGHT,
        **_each(
            "max_in_flight_bytes max_bytes",
            ("limit_bytes", ".prepare(function, limit_bytes=2**28)"),
        ),
        "use_threads": ('where="thread"', '.prepare(function, where="thread")'),
        "predicate_fn": ("predicate", ".filter(predicate)"),
        "drop_nones": ("drop_none", ".prepare(function, drop_none=True)"),
        "shuffle": (".shuffle(size)",),
        "state": ("resume", ".epochs(count, resume=state)"),
        "dtype": ("dtypes", ".batch(size)"),
        "max_tokens": ("tokens_per_batch", ".bucket(boundaries, tokens_per_batch=4096)"),
        "max_length": ("length", ".pack(length)"),
    },
    "coordinators": {
        "timeout": ("stop_grace_period", "asyncio.timeout(seconds)"),
        **_each(
            "grace_period grace",
            ("stop_grace_period", "aioqueue.Coordinator(stop_grace_period=5)"),
        ),
        **_each(
            "num_threads workers num_workers ops",
            ("enqueue_ops", "aioqueue.QueueRunner(queue, [enqueue] * 4)"),
        ),
        "function": ("enqueue_ops", "target", "aioqueue.QueueRunner(queue, [enqueue])"),
        "interval_secs": ("timer_interval_secs", "interval", "aioqueue.LooperTask(interval)"),
        "hang_timeout": ("watchdog", "aioqueue.Coordinator(watchdog=60)"),
    },
    "batchers": {
        **_each("max_batch_size batch_size batch_max_size", _MAX_BATCH),
        **_each(
            "max_latency batch_wait_timeout_s batch_timeout timeout",
            _MAX_WAIT,
        ),
        **_each(
            "max_latency_ms max_wait_ms",
            ("max_wait=0.005", "aioqueue.Batcher(function, max_wait=0.005)"),
        ),
        **_each(
            "max_queue_size maxsize capacity",
            ("queue", "aioqueue.Batcher(function, queue=64)"),
        ),
        **_each(
            "num_workers max_workers concurrency",
            ("workers", "aioqueue.Batcher(function, workers=2)"),
        ),
        **_each("fn func", ("function", "aioqueue.Batcher(function)")),
    },
}
"""What is written here instead of a keyword argument, by what was called."""

_PROTOCOLS: Final = frozenset(
    ("__aiter__", "__anext__", "__bool__", "__contains__", "__iter__", "__len__", "__next__")
)
"""Methods that Python itself calls on a queue."""


def no_attribute(thing: Any, name: str, *, kind: str) -> NoReturn:
    """Raise what ``__getattr__`` of a thing is to raise, with what is written here instead.

    Args:
        thing: whose attribute is missing.
        name: of the attribute.
        kind: what the thing is, in words, as a key of `ATTRIBUTES`.

    Raises:
        AttributeError: always.
    """
    if hasattr(type(thing), name):  # a property that has failed: its own error says more
        object.__getattribute__(thing, name)
    advice = ATTRIBUTES[kind].get(name, "")
    if advice and not advice.startswith("aioqueue."):
        advice = f".{advice}"
    raise AttributeError(f"{kind} has no {name!r}{_here(advice)}", name=name, obj=thing)


def no_name(package: str, name: str) -> NoReturn:
    """Raise what ``__getattr__`` of one of our packages is to raise, which calls this itself.

    Args:
        package: its name.
        name: what was looked for.

    Raises:
        AttributeError: always; but
        ImportError: from a statement ``from package import name``, which would replace an
            `AttributeError` by an error of its own, and so lose the advice.
    """
    advice = NAMES.get(package, {}).get(name, "")
    if advice:
        code = sys._getframe(2)
        if code.f_code.co_code[code.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            raise ImportError(
                f"cannot import name {name!r} from {package!r}{_here(advice)}", name=package
            )
    message = f"module {package!r} has no attribute {name!r}{_here(advice)}"
    raise AttributeError(message, name=name, obj=sys.modules[package])


def unexpected_keyword(
    function: str, keyword: str, parameters: Iterable[str], topic: str
) -> TypeError:
    """The error for an argument that a function does not take, with what is written here instead.

    Args:
        function: its name.
        keyword: the name of the argument.
        parameters: the names that it takes.
        topic: what it is about, as a key of `KEYWORDS`.
    """
    names = list(parameters)
    advice = ""
    for one in KEYWORDS[topic].get(keyword, ()):
        parameter = one.split("=")[0]
        if not parameter.isidentifier():
            advice = one
            break
        if parameter in names:
            advice = one if "=" in one else f"{one}="
            break
    import difflib

    if advice:
        end = _here(advice)
    elif similar := difflib.get_close_matches(keyword, names, 1):
        end = f"; did you mean {similar[0]}="
    else:
        end = f"; expected some of {', '.join(sorted(names))}"
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{end}")


def hint_keywords(
    things: Iterable[Any], topic: str, options: Mapping[str, Iterable[str]] | None = None
) -> dict[str, Any]:
    """Let functions and constructors say what to write instead of an argument they do not take.

    A class is changed in place. A function is called through another one that looks at the names
    of its arguments first. So it is not for what is called once for each element: there Python's
    own error has to do.

    Args:
        things: functions and classes of ours.
        topic: what they are about, as a key of `KEYWORDS`.
        options: what ``**options`` stands for, by the names of functions. One that is not here and
            has such arguments is left as it is.

    Returns:
        The new functions, by name.
    """
    made = {}
    for thing in things:
        if isinstance(thing, type):
            owner = next((base for base in thing.__mro__ if "__init__" in vars(base)), object)
            if isinstance(vars(owner)["__init__"], FunctionType):
                checked = _checked(vars(owner)["__init__"], topic, options or {})
                type.__setattr__(owner, "__init__", checked)
        else:
            made[thing.__name__] = _checked(thing, topic, options or {})
    return made


def hint_methods(
    cls: type, topic: str, names: Iterable[str], options: Mapping[str, Iterable[str]] | None = None
) -> None:
    """The same for methods of a class, which are replaced.

    Args:
        cls: has them, itself or by a base.
        topic: what they are about, as a key of `KEYWORDS`.
        names: of the methods.
        options: as of `hint_keywords`.
    """
    for name in names:
        owner = next(base for base in cls.__mro__ if name in vars(base))
        setattr(owner, name, _checked(vars(owner)[name], topic, options or {}))


def _checked(
    function: Callable[..., Any], topic: str, options: Mapping[str, Iterable[str]]
) -> Callable[..., Any]:
    """The function, called through a look at the names of its arguments."""
    shown = function.__name__
    parameters = inspect.signature(function).parameters.values()
    has_options = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if hasattr(function, "__wrapped__") or (has_options and shown not in options):
        return function
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {one.name: None for one in parameters if one.kind in by_name}
    known.pop("self", None)
    known |= dict.fromkeys(options.get(shown, ()))

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in known:
                name = type(args[0]).__name__ if shown == "__init__" else shown
                raise unexpected_keyword(name, keyword, known, topic)
        return function(*args, **keywords)

    return checked


def _here(advice: str) -> str:
    return f"; here that is {advice}" if advice else ""


def not_searched(thing: object) -> NoReturn:
    """Raise the error of ``in``, for ``__contains__``. Python would iterate over the object.

    Args:
        thing: the object, which iteration would use up.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{thing!r} cannot be searched by `in`: the search would use up what it looks at"
    )


def refuse_overrides(cls: type) -> None:
    """Refuse a user's subclass of a queue that overrides one of its methods.

    A queue has two faces, and workers use the one that fits them, with single elements or batches.
    They would bypass the override.

    Raises:
        TypeError: the subclass overrides a method.
    """
    ours = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "aioqueue"]
    names = {name for base in ours for name in vars(base)}
    overridden = sorted(
        name
        for name in names
        if (name in _PROTOCOLS or not name.startswith("__"))
        and next(base for base in cls.__mro__ if name in vars(base)) not in ours
    )
    if overridden:
        raise TypeError(
            f"{cls.__name__} overrides {', '.join(overridden)}: the queue's other face, and workers"
            " that use it, would bypass the override. Write a class that has a queue as an"
            " attribute, and calls it"
        )
