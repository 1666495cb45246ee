"""The names that other libraries have, and what to write here instead: the tables of the hints.

An advice is code, perhaps followed by ``;`` and a remark; a test looks up all of them. In the
tables of attributes it is a member of the thing, unless it begins with ``aioqueue.`` or
``import``. In those of keywords there are several for one name, and the first that the function
takes is given; one that begins with ``.``, or that names a module, fits every function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

AdviceT = TypeVar("AdviceT", str, tuple[str, ...])


def _each(names: str, advice: AdviceT) -> dict[str, AdviceT]:
    """Return the same advice for each of several names."""
    return dict.fromkeys(names.split(), advice)


_STOPPED: Final = "close(); a Coordinator joins the workers"
_NOT_DONE: Final = "an empty queue does not mean that the work is done: join() waits for that"

ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "a queue": {
        **_each("put append send", "enqueue(element)"),
        **_each("put_nowait send_nowait", "enqueue_nowait(element)"),
        **_each("get pop popleft receive", "dequeue()"),
        **_each("get_nowait receive_nowait", "dequeue_nowait()"),
        "qsize": f"size(); {_NOT_DONE}",
        "empty": f"size() == 0; {_NOT_DONE}",
        "full": "size() == queue.capacity",
        **_each("maxsize maxlen", "capacity"),
        **_each("shutdown close_queue aclose", "close()"),
        **_each("is_shutdown closed", "is_closed()"),
        "join_thread": _STOPPED,
        **_each("share_memory_ share_memory get_proxy to_shared", "share()"),
        "unfinished_tasks": "statistics().unfinished",
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
        **_each("size full maxsize", "statistics()"),
        **_each("qsize empty", f"statistics(); {_NOT_DONE}"),
        "unfinished_tasks": "statistics()",
        **_each("ack task_complete", "commit()"),
        "shutdown": "close(); delete() also ends its actor",
    },
    "a source or pipeline": {
        **_each(
            "map apply random_map select_columns remove_columns rename_column "
            "rename_columns cast_column with_transform set_transform decode to_tuple "
            "map_dict map_tuple compose pipe map_structure tree_map map_nested map_keys map_values "
            "cast rename rename_keys extract_keys associate xdecode add_column with_column "
            "drop_columns starmap",
            "prepare(function)",
        ),
        **_each("flat_map flatten flatmap shuffled_flatmap", "flat(function)"),
        **_each(
            "sample_from_datasets choose_from_datasets interleave_datasets mux",
            "mix(other)",
        ),
        **_each(
            "as_numpy_iterator make_one_shot_iterator to_iter_dataset to_map_datapipe "
            "iter_rows to_iterable_dataset make_initializable_iterator get_iterator iterator iter",
            "epochs(count)",
        ),
        "padded_batch": "batch(size, pad=True)",
        **_each("ragged_batch dense_to_ragged_batch listed", "batch(size, collate=list)"),
        **_each(
            "bucket_by_sequence_length group_by_window bucketbatch max_token_bucketize",
            "bucket(boundaries, batch_size)",
        ),
        "rebatch": "unbatch().batch(size)",
        **_each("unbatched disaggregate unlisted", "unbatch()"),
        "map_and_batch": "prepare(function).batch(size)",
        "filter_map": "prepare(function, drop_none=True)",
        "ignore_errors": 'prepare(function, on_error="skip")',
        **_each("prefetch_to_device with_format set_format to_torch", "to_device(device)"),
        **_each(
            "persist cache_on_disk in_memory_cache cache_in_memory on_disk_cache mcached "
            "lmdb_cached materialize",
            "cache(path)",
        ),
        **_each("snapshot save save_to_disk", "write(aioqueue.inputs.to_parquet(folder))"),
        **_each("to_parquet write_parquet", "write(aioqueue.inputs.to_parquet(folder))"),
        **_each("to_json write_json to_json_lines", "write(aioqueue.inputs.to_json_lines(folder))"),
        **_each(
            "to_csv write_csv",
            "write(aioqueue.inputs.to_json_lines(folder)); or to_parquet: no sink writes CSV",
        ),
        **_each(
            "write_tfrecords to_tfrecord to_tfrecords", "write(aioqueue.inputs.to_tfrecord(folder))"
        ),
        **_each("write_webdataset to_tar", "write(aioqueue.inputs.to_tar(folder))"),
        "seed_with": "shuffle(size, seed=seed)",
        **_each(
            "window_shuffle random_shuffle in_batch_shuffle randomize_block_order",
            "shuffle(size)",
        ),
        **_each("mp_prefetch prefetcher", "prefetch(buffer_size)"),
        "pin_memory": 'to_device("cuda")',
        **_each("state_dict get_state", "epochs(...).state_dict()"),
        **_each("load_state_dict set_state", "epochs(..., resume=state)"),
        "set_epoch": "epochs(count, start=epoch)",
        **_each("header limit with_epoch slice islice", "take(count)"),
        "cycle": "epochs()",
        **_each("in_batches_of iter_batches batched aggregate", "batch(size)"),
        "collate": "batch(size, collate=function)",
        **_each(
            "sharding_filter split_dataset_by_node split_by_node streaming_split fullsync",
            "shard(rank, ranks)",
        ),
        "parallel_map": "prepare(function, workers=4)",
        "iter_torch_batches": "batch(size).to_device(device)",
        **_each("select random_sample rsample", "filter(predicate)"),
        "add_sink": "prefetch(buffer_size)",
        "interleave": "mix(other); a reader of files has interleave(files), which opens several",
        **_each("concatenate union chain", "concat(other)"),
        **_each("zip_with_iter zip_with_map zip_longest", "zip(other)"),
        **_each("map_with_index with_index", "enumerate().prepare(function)"),
        **_each("sliding_window pairwise", "window(size, stride)"),
        **_each("head first show take_batch get_single_element", "peek(count)"),
        **_each("benchmark profile inspect stats", "epochs(count); its monitor() measures"),
        **_each("fork tee", "aioqueue.inputs.broadcast"),
        **_each("schema features column_names output_types output_shapes", "element_spec()"),
    },
    "a source": _each(
        "train_test_split random_split split_proportionately split_at_indices", "split(fractions)"
    ),
    "a pipeline": {
        "repeat": "epochs(count); a source has repeat(times), which is within an epoch",
        **_each(
            "split train_test_split random_split split_proportionately split_at_indices",
            "aioqueue.inputs.Source.split(fractions); cut the source, before the stages",
        ),
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
    "a Latest": {
        **_each("put put_nowait set set_value send update store", "publish(value)"),
        **_each("value peek load borrow", "get_nowait(); it returns (version, value)"),
        **_each("recv receive", "get()"),
        **_each("wait changed subscribe wait_for", "wait_newer(version)"),
    },
    "a Batcher": {
        **_each(
            "submit predict infer score enqueue put request run map",
            "sync(value); a coroutine awaits the batcher itself: await batcher(value)",
        ),
        **_each("stats metrics qsize", "statistics()"),
        **_each(
            "start stop close shutdown aclose",
            "aioqueue.Batcher; its block starts it and ends it",
        ),
    },
    "the statistics of a batcher": {
        **_each("p50 median", "latency_quantile(0.5)"),
        **_each("p99 percentile percentiles quantile", "latency_quantile(0.99)"),
        "p90": "latency_quantile(0.9)",
        "p95": "latency_quantile(0.95)",
    },
    "a QueueRunner": {
        "start": "aioqueue.Coordinator.start; coord.start(runner)",
        **_each(
            "stop cancel request_stop close shutdown terminate",
            "aioqueue.Coordinator.request_stop; it stops the runners that it has started",
        ),
        **_each("join wait", "aioqueue.Coordinator.join; it joins what it has started"),
    },
    "a monitor": {
        **_each("stats statistics metrics numbers", "snapshot()"),
        **_each("summary report print", "verdict(); save(path) writes a page"),
        **_each("stop end", "close()"),
        **_each("export collect collector generate_latest", "prometheus()"),
    },
    "a RolloutQueue": {
        **_each("get_batch next_batch sample dequeue recv get_train_batch sample_batch", "get()"),
        **_each("get_sample get_samples wait wait_results wait_for_batch", "get()"),
        **_each("put add submit put_sample enqueue rollout", "generate(function)"),
        **_each("push_with_wait_signal generate_and_push submit_task_input", "generate(function)"),
        **_each(
            "prepare_batch rollout_batch iter_batches stream batches_async", "batches(steps=...)"
        ),
        **_each(
            "update_weights sync_weights set_version update_version on_version_update pause resume"
            " pause_generation resume_generation continue_generation prepare_for_refit"
            " resume_after_refit set_weight_version update_model_version"
            " save_weights_for_sampler",
            "publishing(); the version counts steps by itself",
        ),
        **_each("get_version weight_version policy_version model_version", "version"),
        **_each("global_step current_step get_step", "step"),
        **_each("stats metrics get_stats capacity get_capacity qsize", "statistics()"),
        **_each("get_statistics get_queue_size get_debug_info export_stats", "statistics()"),
        **_each(
            "acquire_submission_slot acquire_slot release_slot on_rollout_submitted"
            " on_rollout_accepted on_rollout_rejected on_rollout_filtered notify_capacity_change",
            "statistics(); the queue counts its slots by itself",
        ),
        **_each("set_limit resize set_concurrency", "set(max_in_flight=256)"),
        **_each("eval validate run_eval evaluate_rollout", "evaluate(prompts)"),
        **_each("mark_consumed mark_consumed_uids task_done", "get(); its batch has done()"),
        **_each("state save checkpoint", "state_dict()"),
        **_each("load restore", "load_state_dict(state)"),
        **_each("stop shutdown destroy", "close(); or stop the coordinator"),
    },
    "a Rollout": {
        **_each(
            "output response completion text tokens token_ids sample trajectory logprobs log_probs",
            "result; what generate has returned",
        ),
        **_each(
            "reward rewards score advantage advantages",
            "result; or let accept= write it into the info of the group",
        ),
        **_each("weight_version policy_version versions", "version; spans has those of its tokens"),
        **_each("uid id group_id prompt_id", "ordinal; and index"),
        **_each("checkpoint yield_ pause_point", "safe_point()"),
    },
    "a Group": {
        **_each("samples responses completions trajectories results outputs", "rollouts"),
        **_each(
            "reward rewards score scores advantage advantages metadata",
            "info; a dict that accept= may write into",
        ),
        **_each("uid id index group_id", "ordinal"),
        **_each("age off_policy_steps", "staleness"),
    },
    "a Batch": {
        **_each("samples prompts items rollouts trajectories rewards data", "groups"),
        **_each("ack commit mark_done complete finish", "done()"),
        **_each("nack release requeue put_back abort", "give_back()"),
        **_each("chunk shard scatter partition", "split(ranks)"),
        **_each("global_step index", "step"),
        **_each("age ages", "staleness"),
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
    **_each("BehaviorSubject ReplaySubject watch Variable", "aioqueue.Latest"),
    **_each(
        "Manager SyncManager BaseManager get_context Process spawn start_processes Pipe",
        "aioqueue.FIFOQueue.share; its result is an argument for processes",
    ),
    **_each("SharedMemory SharedMemoryManager", "aioqueue.FIFOQueue.share; arrays take no pipe"),
    **_each("Value Array", "aioqueue.Latest; with share() for other processes"),
    "Supervisor": "aioqueue.Restart; for aioqueue.QueueRunner(queue, ops, restart=...)",
    **_each("RetryPolicy Backoff", "aioqueue.inputs.Retry; for workers of a runner Restart"),
}
_DATASETS: Final = {
    **_each(
        "Dataset MapDataset from_list from_items string_input_producer input_producer",
        "aioqueue.inputs.items",
    ),
    **_each(
        "IterDataset IterableDataset from_generator IterableWrapper",
        "aioqueue.inputs.from_iterable",
    ),
    **_each("SequenceWrapper InMemoryDataSource from_torch", "aioqueue.inputs.items"),
    **_each(
        "SequentialSampler RandomSampler IndexSampler",
        "aioqueue.inputs.items; with shuffle=True in another order in each epoch",
    ),
    **_each("DataPipe PipelineBuilder DataPipeline FluidWrapper", "aioqueue.inputs.Pipeline"),
    **_each(
        "Map MapTransform RandomMapTransform ParallelMapper Mapper tree_map",
        "aioqueue.inputs.Pipeline.prepare",
    ),
    "Filter": "aioqueue.inputs.Pipeline.filter",
    "Prefetcher": "aioqueue.inputs.Pipeline.prefetch",
    "Unbatcher": "aioqueue.inputs.Pipeline.unbatch",
    "PinMemory": "aioqueue.inputs.Pipeline.to_device",
    **_each("DataLoader StatefulDataLoader", "aioqueue.torch.DataLoader"),
    **_each("WebDataset WebLoader read_webdataset tarfile_to_samples", "aioqueue.inputs.read_tar"),
    **_each(
        "load_dataset from_huggingface from_hf hf_dataset HuggingFaceDataset from_hub",
        "aioqueue.inputs.huggingface_dataset; give it the dataset",
    ),
    **_each("ShardWriter TarWriter write_webdataset to_webdataset", "aioqueue.inputs.to_tar"),
    **_each("ParquetWriter write_parquet", "aioqueue.inputs.to_parquet"),
    **_each("write_json to_json", "aioqueue.inputs.to_json_lines"),
    **_each("write_tfrecords TFRecordFileWriter", "aioqueue.inputs.to_tfrecord"),
    **_each(
        "from_tensor_slices slice_input_producer TensorDataset from_numpy from_pandas from_arrow",
        "aioqueue.inputs.arrays",
    ),
    **_each("range range_input_producer RangeDataSource", "aioqueue.inputs.numbers"),
    **_each(
        "list_files glob match_filenames_once SimpleShardList ResampledShards",
        "aioqueue.inputs.files",
    ),
    "read_images": "aioqueue.inputs.files; decode in prepare(function)",
    "ParquetDataset": "aioqueue.inputs.read_parquet",
    **_each("TFRecordDataset TFRecordReader", "aioqueue.inputs.read_tfrecords"),
    **_each("TextLineDataset TextLineReader read_text", "aioqueue.inputs.read_lines"),
    "CsvDataset": "aioqueue.inputs.read_csv",
    **_each(
        "read_json read_jsonl jsonl read_jsonlines read_ndjson scan_ndjson open_json",
        "aioqueue.inputs.read_json_lines",
    ),
    **_each(
        "braceexpand expand_urls", "aioqueue.inputs.files; it expands {000..127}, as readers do"
    ),
    **_each("FixedLengthRecordDataset FixedLengthRecordReader", "aioqueue.inputs.read_records"),
    **_each("WholeFileReader read_binary_files", "aioqueue.inputs.read_whole_files"),
    "batch_join": "aioqueue.inputs.batch",
    "shuffle_batch_join": "aioqueue.inputs.shuffle_batch",
    **_each(
        "interleave_datasets sample_from_datasets choose_from_datasets RandomMix RoundRobin "
        "MultiNodeWeightedSampler",
        "aioqueue.inputs.mix",
    ),
    **_each(
        "DistributedSampler split_dataset_by_node ShardOptions",
        "aioqueue.inputs.Pipeline.shard",
    ),
    "tee": "aioqueue.inputs.broadcast",
    **_each("RateLimiter Limiter AsyncLimiter Throttle", "aioqueue.inputs.per_second"),
    **_each("concatenate_datasets ConcatDataset ChainDataset", "aioqueue.inputs.Pipeline.concat"),
    **_each(
        "default_collate numpy_collate tree_collate pad_collate stack_examples BatchSampler",
        "aioqueue.inputs.Pipeline.batch",
    ),
    **_each("StackDataset ZipIterDataset ZipMapDataset", "aioqueue.inputs.Pipeline.zip"),
    **_each("random_split train_test_split Subset", "aioqueue.inputs.Source.split"),
}
_IN_INPUTS: Final = (
    *("Pipeline", "Source", "Retry", "Preemption", "arrays", "batch", "broadcast", "files"),
    *("bucket_by_sequence_length", "from_iterable", "items", "mix", "numbers", "prepare"),
    *("read_csv", "read_json_lines", "read_lines", "read_parquet", "read_tar", "read_tfrecords"),
    "shuffle_batch",
    *("load_position", "merge_positions", "save_position", "to_parquet", "to_tar", "to_tfrecord"),
)
_ELSEWHERE: Final = {
    **{name: f"aioqueue.inputs.{name}" for name in _IN_INPUTS},
    "torch": "import aioqueue.torch",
    "ray": "import aioqueue.ray",
    "rl": "import aioqueue.rl",
    **_each("RolloutQueue RolloutManager", "aioqueue.rl.RolloutQueue"),
    "testing": "import aioqueue.testing",
    **{
        name: f"aioqueue.testing.{name}"
        for name in ("VirtualClock", "failing", "no_threads_left", "until_waiting")
    },
    **_each("asgi starlette fastapi CancelOnDisconnect", "import aioqueue.asgi"),
    "compat": "import aioqueue.compat.v1",
}
_IN_TORCH: Final = (
    *("Dataset", "IterableDataset", "TensorDataset", "Subset", "ConcatDataset", "Sampler"),
    *("RandomSampler", "BatchSampler", "WeightedRandomSampler", "default_collate"),
    *("default_convert", "get_worker_info", "random_split"),
)
_IN_CORE: Final = (
    *("AsyncQueue", "LooperTask", "Monitor", "QueueState", "Restart", "Statistics", "explain"),
    *("OutOfRangeError", "QueueClosedError", "QueueEmpty", "QueueFull", "StillRunningError"),
)

_OF_TWO_FACES: Final = ("Batcher", "Coordinator", "FIFOQueue", "Latest", "QueueRunner")

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
            if advice.split(";")[0].endswith(("Queue", "Coordinator", "Batcher", "Latest"))
            else advice
            for name, advice in _QUEUES.items()
        },
    },
    "aioqueue.inputs": {
        **_QUEUES,
        **_DATASETS,
        **{name: f"aioqueue.{name}" for name in (*_IN_CORE, *_OF_TWO_FACES)},
        "decode_tfrecords": "aioqueue.inputs.read_tfrecords",
        "map": "aioqueue.inputs.Pipeline.prepare",
        "filter": "aioqueue.inputs.Pipeline.filter",
        "shuffle": "aioqueue.inputs.Pipeline.shuffle",
        "prefetch": "aioqueue.inputs.Pipeline.prefetch",
        "merge_states": "aioqueue.inputs.merge_positions",
        "PreemptionWatcher": "aioqueue.inputs.Preemption",
    },
    "aioqueue.rl": {
        **{name: f"aioqueue.{name}" for name in ("Coordinator", "FIFOQueue", "Latest")},
        **_each("ItemTimeout TimeoutError", "aioqueue.ItemTimeoutError"),
        **_each(
            "AsyncRolloutManager AsyncTrajectoryCollector FullyAsyncRollouter FullyAsyncTrainer"
            " MessageQueue MessageQueueClient ReplayBuffer RolloutBuffer RolloutController"
            " RolloutManager SampleBuffer StalenessManager TrajectoryBuffer TrajectoryCollector"
            " TrajectoryQueue WorkflowExecutor AsyncRolloutQueue",
            "aioqueue.rl.RolloutQueue",
        ),
        **_each(
            "AsyncRolloutLoop AsyncRolloutWorker RolloutWorker RolloutWorkflow Rollouter"
            " GenerationWorker",
            "aioqueue.rl.RolloutQueue.generate",
        ),
        **_each("Trajectory Sample Episode Completion Experience", "aioqueue.rl.Rollout"),
        **_each("PromptGroup TrajectoryGroup RolloutGroup", "aioqueue.rl.Group"),
        **_each("TrainBatch RolloutBatch Step", "aioqueue.rl.Batch"),
        **_each("RolloutStat RolloutStats", "aioqueue.rl.RolloutStatistics"),
        "SyncRolloutQueue": "aioqueue.rl.BlockingRolloutQueue; or the .sync of a RolloutQueue",
    },
    "aioqueue.torch": {
        **{name: f"torch.utils.data.{name}" for name in _IN_TORCH},
        "StatefulDataLoader": "aioqueue.torch.DataLoader",
        "DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
        "to_device": "aioqueue.inputs.Pipeline.to_device",
        "Pipeline": "aioqueue.inputs.Pipeline",
    },
}
"""Advice for names that a package does not have, by package."""

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
        **_each("initial initial_value default", ("value", "aioqueue.Latest(value)")),
        **_each(
            "maxsize max_size maxlen size limit buffer_size max_buffer_size max_queue_size",
            _CAPACITY,
        ),
        **_each("dtype types", ("dtypes", "aioqueue.FIFOQueue(capacity, dtypes)")),
        "shape": ("shapes", "aioqueue.FIFOQueue(capacity, dtypes, shapes)"),
        **_each(
            "signature element_signature element_spec output_signature structure",
            ("dtypes", "aioqueue.FIFOQueue(capacity, dtypes, shapes)"),
        ),
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
        "key": ("name", "aioqueue.FIFOQueue(capacity, name=name)"),
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
            "num_workers num_parallel_calls num_parallel_batches "
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
            "worker_init_fn map_func transformations operations transform fn func "
            "decode converters",
            _FUNCTION,
        ),
        **_each("num_replicas world_size num_shards shard_options shard_count", _RANKS),
        "buffer_size": ("size", "capacity", ".prefetch(buffer_size)"),
        "padded_shapes": ("pad=True", "dynamic_pad=True", ".batch(size, pad=True)"),
        "padding_values": ("padding_value", ".batch(size, pad=True)"),
        **_each("shard_index index", _RANK),
        **_each("cycle_length num_files", ("files", *_WORKERS)),
        "block_length": ("block", *_WORKERS),
        "num_epochs": _EPOCHS,
        **_each(
            "max_steps num_steps steps_per_epoch num_batches total_steps",
            ("steps", ".epochs(steps=1000)"),
        ),
        **_each(
            "wrapped packing_strategy concat_and_chunk concatenate",
            ("cut=True", ".pack(length, cut=True)"),
        ),
        **_each("return_loss_mask with_loss_mask", ("loss_mask=True", ".pack(length, cut=True)")),
        "count": ("times", ".epochs(count)"),
        **_each("n k num_times", ("count", "size", "times")),
        "limit": ("count", ".take(count)"),
        **_each("lengths proportions", ("fractions", ".split([0.9, 0.1])")),
        **_each("test_size train_size valid_size val_size", (".split([0.9, 0.1])",)),
        "equal_length": ("strict=True", ".zip(other, strict=True)"),
        "filename": ("path", *_PATHS),
        **_each("cache_file cache_file_name cache_dir directory folder", ("path", ".cache(path)")),
        **_each("keep_in_memory in_memory", (".cache()",)),
        "load_from_cache_file": ('on_stale="rebuild"', ".cache(path)"),
        **_each("fingerprint new_fingerprint", ("key", '.cache(path, key="2")')),
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
        **_each(
            "header has_header", ("skip_header_lines=1", "aioqueue.inputs.read_csv(paths, dtypes)")
        ),
        "skiprows": ("skip_header_lines", ".skip(count)"),
        "quote_char": ("quotechar", "aioqueue.inputs.read_csv(paths, dtypes)"),
        "filesystem": ("storage_options", "aioqueue.inputs.files(pattern)"),
        **_each(
            "na_values na_value null_value keep_default_na",
            ("null_values", "aioqueue.inputs.read_csv(paths, dtypes)"),
        ),
        **_each("fillna fill_value", ("fill_null", "aioqueue.inputs.read_csv(paths, dtypes)")),
        "sep": ("delimiter", "aioqueue.inputs.read_csv(paths, dtypes)"),
        **_each("usecols include_columns", ("columns", "aioqueue.inputs.read_csv(paths, dtypes)")),
        **_each(
            "filter expression predicate_filter",
            ("filters", 'aioqueue.inputs.read_parquet(paths, filters=[("year", ">=", 2024)])'),
        ),
        **_each(
            "hive_partitioning hive partition_cols partition_base_dir",
            ('partitioning="hive"', 'aioqueue.inputs.read_parquet(paths, partitioning="hive")'),
        ),
        **_each(
            "missing_columns allow_missing_columns promote_options unify_schemas merge_schema",
            ('schema="union"', 'aioqueue.inputs.read_parquet(paths, schema="union")'),
        ),
        "record_length": ("record_bytes", "aioqueue.inputs.read_records(paths, 32)"),
        **_each(
            "maxcount max_rows_per_file min_rows_per_file num_rows_per_file rows_per_shard "
            "max_shard_size",
            ("rows_per_file",),
        ),
        **_each(
            "rate_limit max_rate requests_per_second requests_per_minute throttle limiter "
            "max_calls qps rps per_second per_minute",
            ("rate", ".prepare(function, rate=aioqueue.inputs.per_second(100))"),
        ),
        **_each(
            "overwrite if_exists save_mode existing_data_behavior mode",
            ('existing="replace"', 'on_stale="rebuild"'),
        ),
        "dynamic_pad": ("pad", ".batch(size, pad=True)"),
        "pad": ("dynamic_pad", ".batch(size, pad=True)"),
        "enqueue_many": (".unbatch()",),
        **_each("num_records nrows", ("limit", "count", ".take(count)")),
        **_each("chunksize batch_rows", ("batch_size", ".batch(size)")),
        **_each(
            "window_size local_shuffle_buffer_size bufsize initial shuffle_buffer",
            ("size", ".shuffle(size)"),
        ),
        "batched": (".batch(size)",),
        **_each("shift step step_size", ("stride", ".window(size, stride)")),
        **_each("token_weights by", ("tokens", ".mix(other, tokens=len)")),
        "probabilities": ("weights", ".mix(other, weights=[1, 2])"),
        "stopping_strategy": ("stop", '.mix(other, stop="first")'),
        **_each("num_cpus num_gpus", ('ray={"num_cpus": 2}', '.prepare(function, where="ray")')),
        "max_retries": ("on_error=aioqueue.inputs.Retry(3)", "aioqueue.inputs.Retry(3)"),
        **_each(
            "adaptive_rate auto_throttle autothrottle throttle rate_limiter",
            (
                "rate",
                ".prepare(ask, rate=aioqueue.inputs.AdaptiveRate(rate, on=OSError))",
            ),
        ),
        **_each(
            "retries attempts max_attempts tries num_retries",
            ("times", "on_error=aioqueue.inputs.Retry(3)", "aioqueue.inputs.Retry(3)"),
        ),
        **_each("exceptions retry_on", ("on", "aioqueue.inputs.Retry(3, on=OSError)")),
        **_each("delay wait initial_delay", ("backoff", "aioqueue.inputs.Retry(3, backoff=1)")),
        **_each(
            "handler ignore_errors skip_errors on_bad_lines on_bad_files ignore_corrupt_files",
            _SKIP,
        ),
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
        "timeout": ("stop_grace_period", "deadline", "asyncio.timeout(seconds)"),
        **_each("seconds duration", ("timeout", "deadline", "asyncio.timeout(seconds)")),
        "stop_grace_period_secs": (
            "stop_grace_period",
            "aioqueue.Coordinator(stop_grace_period=5)",
        ),
        **_each("exception exc cause reason", ("error", ".request_stop(error)")),
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
        **_each(
            "max_restarts restarts retries max_retries max_attempts attempts tries max_failures "
            "respawn on_error",
            ("times", "restart", "aioqueue.Restart(times=3)"),
        ),
        **_each(
            "delay wait initial_delay wait_time", ("backoff", "aioqueue.Restart(3, backoff=1)")
        ),
        **_each("exceptions retry_on", ("on", "aioqueue.Restart(3, on=OSError)")),
        "hang_timeout": ("watchdog", "aioqueue.Coordinator(watchdog=60)"),
    },
    "batchers": {
        **_each("max_batch_size batch_size batch_max_size preferred_batch_size", _MAX_BATCH),
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
            ("queue", "aioqueue.Batcher(function, queue=aioqueue.FIFOQueue(64))"),
        ),
        **_each(
            "num_workers max_workers concurrency max_concurrency",
            ("workers", "aioqueue.Batcher(function, workers=2)"),
        ),
        **_each("fn func", ("function", "aioqueue.Batcher(function)")),
        **_each(
            "max_batch_tokens max_tokens max_num_batched_tokens token_budget batch_size_fn cost",
            (
                "weight and max_batch_weight",
                "aioqueue.Batcher(function, weight=len, max_batch_weight=4096)",
            ),
        ),
        **_each("validate validator schema", ("check", "aioqueue.Batcher(function, check=check)")),
        **_each(
            "aging starvation priority_aging",
            (
                "ageing",
                "aioqueue.Batcher(function, queue=aioqueue.PriorityQueue(64), ageing=0.1)",
            ),
        ),
    },
    "rollouts": {
        **_each(
            "n_samples num_generations group n samples_per_prompt rollout_n n_samples_per_prompt"
            " num_generations_per_prompt num_return_sequences",
            ("group_size", "RolloutQueue(prompts, batch_size=64, group_size=8)"),
        ),
        **_each(
            "train_batch_size rollout_batch_size consumer_batch_size groups_per_batch"
            " mini_batch_size policy_mini_batch_size ppo_mini_batch_size num_prompts_per_step"
            " require_batches",
            ("batch_size", "RolloutQueue(prompts, batch_size=64)"),
        ),
        **_each(
            "max_head_offpolicyness max_staleness_steps staleness_threshold pipeline_depth"
            " async_level sampling_steps_ahead max_trajectory_age_steps max_lookahead_versions",
            ("steps_ahead", "RolloutQueue(prompts, batch_size=64, steps_ahead=1)"),
        ),
        **_each(
            "max_off_policy off_policy_steps max_off_policy_steps max_steps_off_policy max_age",
            (
                "max_staleness",
                "RolloutQueue(prompts, batch_size=64, max_staleness=2, on_stale='wait')",
            ),
        ),
        **_each(
            "max_concurrent_rollouts concurrency max_concurrency num_workers max_inflight"
            " max_inflight_tasks num_parallel_generation_workers max_concurrent",
            ("max_in_flight", "RolloutQueue(prompts, batch_size=64, max_in_flight=256)"),
        ),
        **_each(
            "filter should_accept should_accept_fn dynamic_filter reward_fn reward_func"
            " reward_funcs reward_function score zero_variance_filter",
            ("accept", "RolloutQueue(prompts, batch_size=64, accept=score)"),
        ),
        **_each(
            "sample_full_batch dynamic_bs",
            ("on_refused", "RolloutQueue(prompts, batch_size=64, on_refused='shorten')"),
        ),
        "max_generation_failures": (
            "on_error",
            "RolloutQueue(prompts, batch_size=64, on_error='drop')",
        ),
        **_each(
            "dataset data source dataloader train_dataset",
            ("prompts", "RolloutQueue(prompts, batch_size=64)"),
        ),
        **_each(
            "queue_maxsize max_queue_size maxsize capacity buffer_size",
            ("steps_ahead", "RolloutQueue(prompts, batch_size=64, steps_ahead=1)"),
        ),
        **_each(
            "generate workflow rollout_fn rollout_func engine generator",
            (".generate(function)",),
        ),
        **_each("timeout request_timeout rollout_timeout", (".generate(function, timeout=600)",)),
        **_each("retry retries max_retries", (".generate(function, retry=aioqueue.rl.Retry(3))",)),
        **_each(
            "weight_sync_steps trigger_parameter_sync_step",
            (".publishing()",),
        ),
        **_each("partial_rollout in_flight_weight_updates drain", (".publishing(drain=True)",)),
        **_each("steps max_steps total_steps num_steps", (".batches(steps=1000)",)),
        **_each("epochs num_epochs", ("aioqueue.inputs.items(data, epochs=3)",)),
    },
    "rollouts in training": {
        "timeout": (".sync.get(timeout=60)",),
        **_each("max_steps total_steps num_steps", ("steps", ".batches(steps=1000)")),
        **_each(
            "n num_samples n_samples samples num_generations",
            ("group_size", "RolloutQueue(prompts, batch_size=64, group_size=8)"),
        ),
        **_each("pause wait abort", ("drain", ".publishing(drain=True)")),
        **_each("model state_dict params parameters", ("weights", ".publishing(weights)")),
        **_each("batch_size", ("RolloutQueue(prompts, batch_size=64)",)),
    },
}
"""What is written here instead of a keyword argument, by what was called."""
