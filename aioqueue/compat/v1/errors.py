"""``tf.errors``: `OpError` and its sixteen classes, one per status code.

Those that aioqueue has as well are also aioqueue's own, so that ``except
aioqueue.OutOfRangeError`` catches what a session raises. `CancelledError` is both
`aioqueue.CancelledError` and `aioqueue.QueueClosedError`: TensorFlow has one class for both.
Every error survives pickling, without its operation.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self

import aioqueue
from aioqueue.base.display_text import without_secrets
from aioqueue.compat.v1.absent import names_of
from aioqueue.compat.v1.core.graph import Operation

__all__ = (
    "ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "OK", "OUT_OF_RANGE",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE", "UNIMPLEMENTED",
    "UNKNOWN", "AbortedError", "AlreadyExistsError", "CancelledError", "DataLossError",
    "DeadlineExceededError", "FailedPreconditionError", "InternalError", "InvalidArgumentError",
    "NotFoundError", "OpError", "OutOfRangeError", "PermissionDeniedError",
    "ResourceExhaustedError", "UnauthenticatedError", "UnavailableError", "UnimplementedError",
    "UnknownError", "error_code_from_exception_type", "exception_type_from_error_code",
)  # fmt: skip

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
DATA_LOSS: Final = 15
UNAUTHENTICATED: Final = 16


class OpError(Exception):
    """An operation failed while a session ran it: `op`, until it is pickled, as `node_def` says."""

    def __init__(
        self, node_def: Any, op: Operation | None, message: str | bytes, error_code: int
    ) -> None:
        message = without_secrets(_text(message))
        super().__init__(message)
        self.node_def: Any = node_def
        self.op: Operation | None = op
        self.message: str = message
        self.error_code: int = error_code
        self._run_was_ended = False

    def blame(self, op: Operation) -> None:
        """Say that it was `op` that failed, unless that is known already."""
        if self.op is None and self.node_def is None and not self._run_was_ended:
            self.op = op
            self.node_def = op.node_def
            self.message += f"\n\t [[node {op.name} (op {op.type})]]"
            self.args: tuple[Any, ...] = (self.message,)

    def acquit(self) -> Self:
        """Say that no operation is to blame: the run was ended from outside. Returns the error."""
        self._run_was_ended = True
        return self

    def __str__(self) -> str:
        if self.op is None or self.op.defined_at is None:
            return self.message
        file, line = self.op.defined_at
        return f"{self.message}\n\nOperation '{self.op.name}' was defined at {file}:{line}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "op": None, "__cause__": _picklable(self.__cause__)}
        return _unpickled, (type(self), self.message, self.error_code), state


def _text(message: object) -> str:
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def _picklable(cause: BaseException | None) -> BaseException | None:
    return cause if isinstance(cause, OpError | aioqueue.AioQueueError) else None


def _unpickled(kind: type[OpError], message: str, error_code: int) -> OpError:
    if kind is OpError:
        return OpError(None, None, message, error_code)
    return kind(None, None, message)  # type: ignore[call-arg]


class UnknownError(OpError):
    """Something else went wrong, such as an exception in a `py_func`."""

    def __init__(
        self, node_def: Any, op: Operation | None, message: str | bytes, error_code: int = UNKNOWN
    ) -> None:
        super().__init__(node_def, op, message, error_code)


class _StatusError(OpError):
    """The other classes: each has a status code of its own, and is made of the rest."""

    _code: ClassVar[int] = UNKNOWN

    def __init_subclass__(cls, code: int | None = None) -> None:
        super().__init_subclass__()
        cls._code = cls._code if code is None else code

    def __init__(self, node_def: Any, op: Operation | None, message: str | bytes) -> None:
        super().__init__(node_def, op, message, self._code)


class CancelledError(
    _StatusError, aioqueue.CancelledError, aioqueue.QueueClosedError, code=CANCELLED
):
    """The operation was withdrawn, or was an enqueue on a closed queue."""

    queue = ""
    enqueued = 0


class InvalidArgumentError(_StatusError, aioqueue.InvalidArgumentError, code=INVALID_ARGUMENT):
    """An operation got values that it cannot work with, or was not fed one that it needs."""


class DeadlineExceededError(_StatusError, aioqueue.DeadlineExceededError, code=DEADLINE_EXCEEDED):
    """The run's timeout was over first."""

    enqueued = 0


class NotFoundError(_StatusError, code=NOT_FOUND):
    """A file or another entity is not there."""


class AlreadyExistsError(_StatusError, code=ALREADY_EXISTS):
    """What was to be made is there already."""


class PermissionDeniedError(_StatusError, code=PERMISSION_DENIED):
    """The caller may not do this."""


class ResourceExhaustedError(_StatusError, code=RESOURCE_EXHAUSTED):
    """Memory, disk space or a quota is used up."""


class FailedPreconditionError(_StatusError, code=FAILED_PRECONDITION):
    """Something else has to happen first, such as the initialization of a variable."""


class AbortedError(_StatusError, code=ABORTED):
    """The operation was given up because of another one at the same time."""


class OutOfRangeError(_StatusError, aioqueue.OutOfRangeError, code=OUT_OF_RANGE):
    """The end of the input: a closed queue has too little left, or a counter is at its limit."""

    queue = ""
    requested = remaining = held = 0


class UnimplementedError(_StatusError, code=UNIMPLEMENTED):
    """The operation exists, but not for this."""


class InternalError(_StatusError, code=INTERNAL):
    """Something that is always so was not so."""


class UnavailableError(_StatusError, code=UNAVAILABLE):
    """A service is not there at the moment."""


class DataLossError(_StatusError, code=DATA_LOSS):
    """Data are damaged, and cannot be had again."""


class UnauthenticatedError(_StatusError, code=UNAUTHENTICATED):
    """The caller has not said who it is."""


_CLASSES: dict[int, type[Any]] = {
    UNKNOWN: UnknownError,
    **{kind._code: kind for kind in _StatusError.__subclasses__()},
}
_CODES = {kind: code for code, kind in _CLASSES.items()}


def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """The class for a status code."""
    return _CLASSES[error_code]


def error_code_from_exception_type(cls: type[OpError]) -> int:
    """The status code of a class; `UNKNOWN`'s for any other class."""
    return _CODES.get(cls, UNKNOWN)


__getattr__ = names_of(__name__)
