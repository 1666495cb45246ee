"""Protobuf messages of TensorFlow, made from a description of their fields at run time.

No generated code, and no TensorFlow. The classes live in a descriptor pool of their own, so that a
TensorFlow in the same process, which registers the same names, does not mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioqueue.base import extras

__all__ = ("message_classes",)

OPTIONAL, REPEATED = 1, 3
SCALARS = {
    "bool": 8,
    "bytes": 12,
    "double": 1,
    "float": 2,
    "int32": 5,
    "int64": 3,
    "string": 9,
    "uint32": 13,
    "uint64": 4,
}
MESSAGE = 11


def message_classes(file: str, schema: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Make message classes.

    Args:
        file: name of TensorFlow's file that has them.
        schema: by name of a message its fields by name, in the order of their numbers, from 1;
            each a type (``"int64"``, or the name of a message) that may have ``"repeated"``,
            ``"map"`` (from strings), ``"oneof"``, or ``"oneof"`` and a name for it before it. A
            message within another one is called ``"Outer.Inner"``, and comes after it. A field
            without a type is a number that is not used.

    Returns:
        The classes by name.

    Raises:
        ModuleNotFoundError: protobuf is not installed; the message says the command that
            installs it.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the messages {', '.join(schema)} need protobuf: {extras.command_for('tfrecord')}",
            name=error.name,
        ) from error
    described = descriptor_pb2.FileDescriptorProto(name=file, package="tensorflow", syntax="proto3")
    for name, fields in schema.items():
        outer, _, inner = name.rpartition(".")
        message = (
            next(one for one in described.message_type if one.name == outer).nested_type.add(
                name=inner
            )
            if outer
            else described.message_type.add(name=name)
        )
        for number, (field, kind) in enumerate(fields.items(), 1):
            if kind:
                _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in schema
    }
    for name in schema:
        outer, _, inner = name.rpartition(".")
        if outer and not hasattr(classes[outer], inner):  # protobuf's own Python lacks it
            setattr(classes[outer], inner, classes[name])
    return classes


def _add_field(message: Any, name: str, number: int, described: str) -> None:
    how, _, kind = described.rpartition(" ")
    is_list = how in ("repeated", "map")
    field = message.field.add(name=name, number=number, label=REPEATED if is_list else OPTIONAL)
    if how == "map":
        # On the wire, a list of messages that have a key and a value.
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind)
        kind = f"{message.name}.{entry.name}"
    if how.startswith("oneof"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=how.removeprefix("oneof").strip() or "kind")
        field.oneof_index = 0
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = MESSAGE, f".tensorflow.{kind}"
