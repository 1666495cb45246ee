"""``tf.train``: coordination, runners, input producers and batchers, monitored sessions."""

# ruff: noqa: F403  # a module that has TensorFlow's names and no others is taken whole

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.coordination import coordinator as _coordinator
from aioqueue.compat.v1.coordination import runners as queue_runner
from aioqueue.compat.v1.coordination.coordinator import *
from aioqueue.compat.v1.coordination.runners import *
from aioqueue.compat.v1.inputs import producers as _producers
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
from aioqueue.compat.v1.inputs.producers import *
from aioqueue.compat.v1.ops.variables import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from aioqueue.compat.v1.protos import EXAMPLE_MESSAGES, example_classes
from aioqueue.compat.v1.queues import servers as _servers
from aioqueue.compat.v1.queues.servers import *
from aioqueue.compat.v1.readers.records import summary_iterator
from aioqueue.compat.v1.session.checkpoints import (
    CheckpointState,
    checkpoint_exists,
    checkpoints_iterator,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    latest_checkpoint,
    remove_checkpoint,
    update_checkpoint_state,
)
from aioqueue.compat.v1.session.hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
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
    SummarySaverHook,
)
from aioqueue.compat.v1.session.messages import SaverDef
from aioqueue.compat.v1.session.monitored import (
    ChiefSessionCreator,
    MonitoredSession,
    MonitoredTrainingSession,
    Scaffold,
    SessionCreator,
    SessionManager,
    SingularMonitoredSession,
)
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.supervisor import Supervisor
from aioqueue.compat.v1.summaries.writer import SummaryWriter

__all__: tuple[str, ...] = (
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "FeedFnHook",
    "FinalOpsHook",
    "LoggingTensorHook",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "Saver",
    "SaverDef",
    "Scaffold",
    "SecondOrStepTimer",
    "SessionCreator",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "StopAtStepHook",
    "SummarySaverHook",
    "SummaryWriter",
    "Supervisor",
    "assert_global_step",
    "batch",
    "batch_join",
    "checkpoint_exists",
    "checkpoints_iterator",
    "create_global_step",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "latest_checkpoint",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "queue_runner",
    "remove_checkpoint",
    "shuffle_batch",
    "shuffle_batch_join",
    "summary_iterator",
    "update_checkpoint_state",
)
__all__ += _coordinator.__all__
__all__ += _producers.__all__
__all__ += _servers.__all__
__all__ += queue_runner.__all__

# They need protobuf, an extra, and are made when they are asked for.
_DEFERRED: dict[str, Callable[[], Any]] = {
    name: lambda name=name: example_classes()[name]  # type: ignore[misc]
    for name in EXAMPLE_MESSAGES
}

__getattr__ = names_of(__name__, deferred=_DEFERRED)


def __dir__() -> list[str]:
    """The public names, those among them that are made when they are asked for."""
    return sorted({*__all__, *_DEFERRED})
