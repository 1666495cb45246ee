"""PyTorch's `DataLoader`, built on the queues and the coordinator of aioqueue.

`DataLoader` takes the arguments of `torch.utils.data.DataLoader`, and returns the same batches in
the same order. It prepares them on threads of this process, unless you ask for processes. You can
save and resume it in the middle of an epoch.
"""

from __future__ import annotations

import typing as _typing

from aioqueue.base.extras import command_for as _command_for

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        f"aioqueue.torch needs PyTorch, which is not installed: {_command_for('torch')}"
        " (see https://pytorch.org for machines without CUDA). Without PyTorch, a pipeline loads"
        " the same data set: aioqueue.inputs.numbers(len(dataset)).prepare(dataset.__getitem__)"
        ".batch(32, collate=collate)",
        name="torch",
    ) from _error

from aioqueue.base.hints import raise_unknown_name as _no_name
from aioqueue.torch.epoch_iterator import LoaderIterator
from aioqueue.torch.loader import DataLoader
from aioqueue.torch.loader_metrics import LoaderStatistics
from aioqueue.torch.worker_info import WorkerGenerators

__all__ = ("DataLoader", "LoaderIterator", "LoaderStatistics", "WorkerGenerators")

for _name in __all__:
    # Tracebacks and reprs show the public path.
    globals()[_name].__module__ = __name__
del _name, _torch

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        """Say what is written here instead of a name of another library."""
        _no_name(__name__, name)
