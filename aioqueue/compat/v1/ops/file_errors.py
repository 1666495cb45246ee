"""What goes wrong with files, as TensorFlow's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aioqueue.compat.v1 import errors

__all__ = ("file_errors",)

KINDS: dict[int, type[errors.OpError]] = {
    errno.ENOENT: errors.NotFoundError,
    errno.ENOTDIR: errors.FailedPreconditionError,
    errno.EISDIR: errors.FailedPreconditionError,
    errno.ENOTEMPTY: errors.FailedPreconditionError,
    errno.EEXIST: errors.AlreadyExistsError,
    errno.EACCES: errors.PermissionDeniedError,
    errno.EPERM: errors.PermissionDeniedError,
    errno.ENOSPC: errors.ResourceExhaustedError,
    errno.EMFILE: errors.ResourceExhaustedError,
}


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Raise what goes wrong with a file within the block as TensorFlow would.

    Args:
        path: of the file, as messages call it.
    """
    try:
        yield
    except OSError as error:
        code = error.errno
        kind: Any = errors.UnknownError if code is None else KINDS.get(code, errors.UnknownError)
        reason = str(error) if code is None else os.strerror(code)
        raise kind(None, None, f"{path}; {reason}") from error
