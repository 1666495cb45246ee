"""``tf.train``: coordination, runners, input producers and batchers, monitored sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.compat.v1.absent import (
    names_of,
)
from aioqueue.compat.v1.coordination import runners as queue_runner
from aioqueue.compat.v1.coordination.coordinator import (
    Coordinator,
    LooperThread,
)
from aioqueue.compat.v1.coordination.runners import (
    QueueRunner,
    QueueRunnerDef,
    add_queue_runner,
    start_queue_runners,
)
from aioqueue.compat.v1.inputs.batchers import (
    batch,
    batch_join,
    maybe_batch,
    maybe_batch_join,
    maybe_shuffle_batch,
    maybe_shuffle_batch_join,
    shuffle_batch,
    shuffle_batch_join,
)
from aioqueue.compat.v1.inputs.producers import (
    input_producer,
    limit_epochs,
    match_filenames_once,
    range_input_producer,
    slice_input_producer,
    string_input_producer,
)
from aioqueue.compat.v1.ops.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from aioqueue.compat.v1.protos.examples import MESSAGES, example_classes
from aioqueue.compat.v1.protos.summaries import summary_classes
from aioqueue.compat.v1.queues.servers import (
    ClusterSpec,
    Server,
    ServerDef,
)
from aioqueue.compat.v1.readers.records import summary_iterator
from aioqueue.compat.v1.session.checkpoint_hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
)
from aioqueue.compat.v1.session.checkpoints import (
    CheckpointState,
    checkpoint_exists,
    get_checkpoint_state,
    latest_checkpoint,
)
from aioqueue.compat.v1.session.hooks import (
    FeedFnHook,
    FinalOpsHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StopAtStepHook,
)
from aioqueue.compat.v1.session.monitored import (
    MonitoredSession,
    MonitoredTrainingSession,
    SingularMonitoredSession,
)
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.scaffold import (
    ChiefSessionCreator,
    Scaffold,
    SessionCreator,
)
from aioqueue.compat.v1.session.supervisor import Supervisor
from aioqueue.compat.v1.summaries.writer import SummaryWriter

__all__ = (
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "ClusterSpec",
    "Coordinator",
    "FeedFnHook",
    "FinalOpsHook",
    "LoggingTensorHook",
    "LooperThread",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "QueueRunner",
    "QueueRunnerDef",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "Server",
    "ServerDef",
    "SessionCreator",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StopAtStepHook",
    "SummaryWriter",
    "Supervisor",
    "add_queue_runner",
    "assert_global_step",
    "batch",
    "batch_join",
    "checkpoint_exists",
    "create_global_step",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "input_producer",
    "latest_checkpoint",
    "limit_epochs",
    "match_filenames_once",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "queue_runner",
    "range_input_producer",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "start_queue_runners",
    "string_input_producer",
    "summary_iterator",
)

# They need protobuf, an extra, and are made when they are asked for.
_DEFERRED: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: example_classes()[name] for name in MESSAGES},  # type: ignore[misc]
    "SessionLog": lambda: summary_classes()["SessionLog"],
}

__getattr__ = names_of(__name__, deferred=_DEFERRED)


def __dir__() -> list[str]:
    """The public names, those among them that are made when they are asked for."""
    return sorted({*__all__, *_DEFERRED})
