"""Text and bytes to numbers or other bytes: `string_to_number`, `decode_raw`, base64, zlib."""

from __future__ import annotations

import base64
import string
import zlib
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes
from aioqueue.compat.v1.core.graph import Tensor
from aioqueue.compat.v1.ops.building import OpBuilder, Pure, invalid
from aioqueue.compat.v1.ops.numbers import NUMERIC, c_name, parse_number
from aioqueue.compat.v1.ops.text import map_strings
from aioqueue.compat.v1.protos import example_classes

__all__ = (
    "decode_base64",
    "decode_compressed",
    "decode_json_example",
    "decode_raw",
    "encode_base64",
    "string_to_number",
)

_WEB_SAFE = frozenset((string.ascii_letters + string.digits + "-_").encode())


def string_to_number(
    string_tensor: Any = None,
    out_type: Any = dtypes.float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """The numbers that strings mean.

    Args:
        string_tensor: strings.
        out_type: float32, float64, int32 or int64.
        name: name of the op.
        input: another name of `string_tensor`.

    Raises:
        InvalidArgumentError: when it runs: a string means no number of that type.
    """
    wanted = dtypes.as_dtype(out_type)
    if wanted.name not in NUMERIC:
        raise TypeError(f"out_type: got {wanted!r}; expected one of {', '.join(sorted(NUMERIC))}")

    def number(text: bytes) -> Any:
        try:
            return parse_number(text, wanted)
        except ValueError:
            shown = text.decode(errors="replace")
            raise invalid(f"StringToNumberOp could not correctly convert string: {shown}") from None

    def numbers(texts: Any) -> Any:
        if isinstance(texts, bytes):
            return wanted.numpy.type(number(texts))
        found = [number(text) for text in texts.ravel().tolist()]
        return np.array(found, wanted.numpy).reshape(texts.shape)

    with OpBuilder("StringToNumber", name) as op:
        texts = op.tensor(
            input if string_tensor is None else string_tensor, "string_tensor", dtypes.string
        )
        return op.output(wanted, texts.shape.as_tuple(), Pure(numbers))


def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
    fixed_length: int | None = None,
) -> Tensor:
    """Strings as the bytes of numbers.

    Args:
        input_bytes: strings, all of one length.
        out_type: the numbers' dtype.
        little_endian: whether their first byte is the lowest.
        name: name of the op.
        bytes: the old name of `input_bytes`.
        fixed_length: the length, in bytes, that strings are cut or filled up to with zeros; if
            None they must all have one length.

    Returns:
        The shape of the strings, and a last axis for the numbers of each.

    Raises:
        InvalidArgumentError: when it runs: the length is no multiple of a number's size, or
            differs between strings.
    """
    given = bytes if input_bytes is None else input_bytes
    if given is None or out_type is None:
        raise ValueError("decode_raw: input_bytes and out_type must be given")
    wanted = dtypes.as_dtype(out_type)
    stored = wanted.numpy.newbyteorder("<" if little_endian else ">")
    if fixed_length is not None and (fixed_length <= 0 or fixed_length % wanted.size):
        raise ValueError(
            f"fixed_length must be a multiple of {wanted.size}, the size of {wanted.name}, and at"
            f" least that; got {fixed_length!r}"
        )

    def numbers(texts: Any) -> Any:
        rows = np.ravel(np.asarray(texts, object)).tolist()
        if fixed_length is not None:
            rows = [row[:fixed_length].ljust(fixed_length, b"\0") for row in rows]
        size = fixed_length if fixed_length is not None else len(rows[0]) if rows else 0
        for place, row in enumerate(rows):
            if len(row) != size:
                raise invalid(
                    "DecodeRaw requires input strings to all be the same size, but element"
                    f" {place} has size {size} != {len(row)}"
                )
        if size % wanted.size:
            raise invalid(
                f"Input to DecodeRaw has length {size} that is not a multiple of {wanted.size},"
                f" the size of {c_name(wanted)}"
            )
        whole = np.frombuffer(b"".join(rows), stored).astype(wanted.numpy)
        return whole.reshape((*np.shape(texts), size // wanted.size))

    with OpBuilder("DecodeRaw", name) as op:
        texts = op.tensor(given, "input_bytes", dtypes.string)
        static = texts.shape.as_tuple()
        return op.output(wanted, None if static is None else (*static, None), Pure(numbers))


def decode_json_example(json_examples: Any, name: str | None = None) -> Tensor:
    """Examples written in JSON as serialized ones. Needs the extra ``tfrecord``.

    Args:
        json_examples: strings of JSON, in the mapping that protobuf has for it.
        name: name of the op.

    Raises:
        ModuleNotFoundError: protobuf is not installed.
        InvalidArgumentError: when it runs: a string is no example.
    """
    message_class = example_classes()["Example"]
    from google.protobuf import json_format

    def serialized(text: bytes) -> bytes:
        message = message_class()
        try:
            json_format.Parse(text, message)
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise invalid(f"Error while parsing JSON: {error}") from error
        return bytes(message.SerializeToString(deterministic=True))

    return map_strings("DecodeJSONExample", serialized, json_examples, name)


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings in web-safe base64, with ``=`` behind them if `pad`."""

    def encoded(text: bytes) -> bytes:
        made = base64.urlsafe_b64encode(text)
        return made if pad else made.rstrip(b"=")

    return map_strings("EncodeBase64", encoded, input, name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:
    """What strings in web-safe base64 stand for.

    Raises:
        InvalidArgumentError: when it runs: a string is no base64.
    """

    def decoded(text: bytes) -> bytes:
        stripped = text.rstrip(b"=")
        if not _WEB_SAFE.issuperset(stripped):
            raise invalid("Invalid character found in base64.")
        if len(stripped) % 4 == 1:
            raise invalid("Base64 string length cannot be 1 modulo 4.")
        return base64.urlsafe_b64decode(stripped + b"=" * (-len(stripped) % 4))

    return map_strings("DecodeBase64", decoded, input, name)


_WINDOWS = {"ZLIB": zlib.MAX_WBITS, "GZIP": 16 + zlib.MAX_WBITS}
"""The ``wbits`` by which zlib knows each format."""


def decode_compressed(bytes: Any, compression_type: str = "", name: str | None = None) -> Tensor:
    """Strings that were compressed, as they were before.

    Args:
        bytes: strings.
        compression_type: ``"ZLIB"``, ``"GZIP"``, or an empty string for none.
        name: name of the op.

    Raises:
        ValueError: the type is not one of these.
        InvalidArgumentError: when it runs: a string was not compressed so.
    """
    if compression_type not in ("", *_WINDOWS):
        raise ValueError(
            "Only ZLIB, GZIP or NONE are supported compressions; compression_type:"
            f" got {compression_type!r}"
        )

    def plain(text: Any) -> Any:
        if not compression_type:
            return text
        try:
            return zlib.decompress(text, _WINDOWS[compression_type])
        except zlib.error as error:
            raise invalid(f"inflate failed: {error}") from None

    return map_strings("DecodeCompressed", plain, bytes, name)
