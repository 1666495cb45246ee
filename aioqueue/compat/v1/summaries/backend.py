"""What writes event files: tensorboardX, or else PyTorch's own writer; neither is needed.

Both have a class ``FileWriter`` that takes ``Event`` messages, so that one way leads to either.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, NamedTuple

__all__ = ("Backend", "backend", "can_write")

CHOICES = (("tensorboardX",), ("torch", "tensorboard"))
"""Libraries that write event files, each with what it needs; the first one that is there is used"""


class Backend(NamedTuple):
    """What writes event files."""

    file_writer: Any
    """``FileWriter(directory, max_queue, flush_secs, filename_suffix)``."""
    event: Any
    """The class of the messages that it takes."""


@cache
def can_write() -> bool:
    """Whether anything is installed that writes event files: if not, summaries are empty."""
    return any(
        all(importlib.util.find_spec(name) is not None for name in names) for names in CHOICES
    )


def backend() -> Backend | None:
    """What writes event files; None if nothing does. Importing it takes its time."""
    if not can_write():
        return None
    try:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.writer import FileWriter
    except ImportError:
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard import FileWriter
    return Backend(FileWriter, Event)
