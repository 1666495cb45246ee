"""What TensorFlow keeps in protocol buffers, as plain objects: nothing serializes them here."""

from __future__ import annotations

from typing import Any, ClassVar


class Message:
    """Fields by name, as in a protocol buffer: a known set, each with a default."""

    _fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, **fields: Any) -> None:
        for name, default in self._fields.items():
            self.__dict__[name] = default() if isinstance(default, type) else default
        for name, value in fields.items():
            self._check(name, ValueError)
            self.__dict__[name] = value

    def _check(self, name: str, error: type[Exception]) -> None:
        if name not in self._fields:
            kind = type(self).__name__
            raise error(
                f'Protocol message {kind} has no "{name}" field; it has: {sorted(self._fields)}'
            )

    def __getattr__(self, name: str) -> Any:
        self._check(name, AttributeError)
        raise AssertionError(f"{name} was deleted")

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name, AttributeError)
        self.__dict__[name] = value

    def CopyFrom(self, other: Any) -> None:  # noqa: N802  # protocol buffers' name
        self.__dict__.update(other.__dict__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        given = (
            f"{name}={value!r}"
            for name, value in self.__dict__.items()
            if isinstance(value, Message) or value != self._fields[name]
        )
        return f"{type(self).__name__}({', '.join(given)})"


class SaverDef(Message):
    """The options of a saver; it names no ops, since savers have none here."""

    LEGACY = 0
    V1 = 1
    V2 = 2
    _fields: ClassVar[dict[str, Any]] = {
        "filename_tensor_name": "", "save_tensor_name": "", "restore_op_name": "", "max_to_keep": 0,
        "sharded": False, "keep_checkpoint_every_n_hours": 0.0, "version": 0,
    }  # fmt: skip
