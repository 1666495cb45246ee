"""PyTorch's data loader, on the queues and the coordinator of aioqueue.

`DataLoader` takes the arguments of `torch.utils.data.DataLoader`, and gives the same batches in the
same order. It prepares them on threads of this process, unless it is told to use processes, and it
can be saved and resumed in the middle of an epoch.
"""

from __future__ import annotations

import typing as _typing

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "aioqueue.torch needs PyTorch, which is not installed: pip install 'aioqueue[torch]'"
        " (https://pytorch.org says how to get it for a machine without CUDA)",
        name="torch",
    ) from error

from aioqueue.migration_hints import no_name as _no_name
from aioqueue.torch.epoch_iterator import LoaderIterator
from aioqueue.torch.loader import DataLoader
from aioqueue.torch.worker_info import WorkerGenerators

__all__ = ("DataLoader", "LoaderIterator", "WorkerGenerators")

for _name in __all__:
    # Tracebacks and reprs show the public path.
    globals()[_name].__module__ = __name__
del _name, _torch

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:
        """Say what is written here instead of a name of another library."""
        _no_name(__name__, name)
