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
from aioqueue.compat.v1.inputs import batchers as _batchers
from aioqueue.compat.v1.inputs import producers as _producers
from aioqueue.compat.v1.inputs.batchers import *
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
from aioqueue.compat.v1.session import checkpoints as _checkpoints
from aioqueue.compat.v1.session import hooks as _hooks
from aioqueue.compat.v1.session import monitored as _monitored
from aioqueue.compat.v1.session.checkpoints import *
from aioqueue.compat.v1.session.hooks import *
from aioqueue.compat.v1.session.messages import SaverDef
from aioqueue.compat.v1.session.monitored import *
from aioqueue.compat.v1.session.saver import Saver
from aioqueue.compat.v1.session.supervisor import Supervisor
from aioqueue.compat.v1.summaries.writer import SummaryWriter

__all__: tuple[str, ...] = (
    "Saver", "SaverDef", "SummaryWriter", "Supervisor", "assert_global_step", "create_global_step",
    "get_global_step", "get_or_create_global_step", "global_step", "queue_runner",
    "summary_iterator",
)  # fmt: skip
__all__ += _batchers.__all__
__all__ += _checkpoints.__all__
__all__ += _coordinator.__all__
__all__ += _hooks.__all__
__all__ += _monitored.__all__
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
