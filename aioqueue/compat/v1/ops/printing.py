"""What shows values: `Assert`, which fails with them, and `Print` and `print`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aioqueue.compat.v1.core import dtypes, nest
from aioqueue.compat.v1.core.convert import convert_to_tensor
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.errors import InvalidArgumentError
from aioqueue.compat.v1.ops.escaping import c_escaped

__all__ = ("Assert", "Print", "print", "summarize_value")

_FEW = 3


def summarize_value(value: Any, most: int = _FEW) -> str:
    """A value as messages show it: ``[1 2 3...]``, with at most `most` elements (-1 for all)."""
    array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
    limit = array.size if most < 0 else most
    shown = [
        c_escaped(one) if isinstance(one, bytes) else _text(one)
        for one in itertools.islice(array.flat, limit)
    ]
    dots = "..." if array.size > limit else ""
    if array.ndim < 2:
        return f"[{' '.join(shown)}{dots}]"
    return f"[{_rows(shown, array.shape)}{dots}]"


def _rows(shown: Sequence[str], shape: Sequence[int]) -> str:
    """Rows in brackets; one that is not shown to its end has dots there, as the whole has."""
    if len(shape) == 1:
        return " ".join(shown) + ("..." if len(shown) < shape[0] else "")
    width = max(1, int(np.prod(shape[1:])))
    starts = range(0, len(shown), width)
    return "".join(f"[{_rows(shown[start : start + width], shape[1:])}]" for start in starts)


def _text(one: Any) -> str:
    if isinstance(one, bytes):
        return one.decode(errors="backslashreplace")
    if isinstance(one, bool | np.bool_):
        return str(int(one))
    return f"{one:g}" if isinstance(one, float | np.floating) else str(one)


def Assert(  # noqa: N802  # TensorFlow's name
    condition: Any, data: Iterable[Any], summarize: int | None = None, name: str | None = None
) -> Operation:
    """An operation that fails with `data` unless `condition` is true.

    Like every operation it runs only if something depends on it.

    Args:
        condition: a bool scalar, or an array whose elements must all be true.
        data: tensors and values to show.
        summarize: how many elements of each are shown; None for 3.
        name: of the scope.

    Raises:
        TypeError: the condition is no bool.
    """
    most = _FEW if summarize is None else summarize
    with name_scope(name, "Assert", [condition]):
        values = list(data)
        for one in values:
            convert_to_tensor(one)  # twice, as TensorFlow does: derived seeds count operations

        def kernel(step: Any, holds: Any, *found: Any) -> None:
            if not np.all(holds):
                texts = " ".join(summarize_value(one, most) for one in found)
                raise InvalidArgumentError(None, None, f"assertion failed: {texts}")

        with name_scope("Assert") as scope:
            tested = convert_to_tensor(condition, dtypes.bool, name="condition")
            shown = [convert_to_tensor(one, name=f"data_{i}") for i, one in enumerate(values)]
            return op("Assert", [tested, *shown], (), kernel, name=scope)


def Print(  # noqa: N802  # TensorFlow's name
    input_: Any,
    data: Iterable[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """A tensor with the value of `input_`; whenever it is computed `data` is written to stderr.

    Args:
        input_: the tensor.
        data: tensors and values to show.
        message: what is written before them.
        first_n: how often at most in one session; None for always.
        summarize: how many elements of each are shown; None for 3.
        name: of the operation.
    """
    most = _FEW if summarize is None else summarize

    def kernel(step: Any, value: Any, *values: Any) -> Any:
        if first_n is None or first_n < 0 or next(_counter(step, made)) < first_n:
            shown = "".join(summarize_value(one, most) for one in values)
            sys.stderr.write(f"{message or ''}{shown}\n")
        return value

    with name_scope(name, "Print") as scope:
        tensor = convert_to_tensor(input_, name="input")
        tensors = [convert_to_tensor(one, name=f"data_{i}") for i, one in enumerate(data)]
        outputs = [(tensor.dtype, tensor.shape)]
        made = op("Print", [tensor, *tensors], outputs, kernel, name=scope)
    return made.outputs[0]


def _counter(step: Any, operation: Operation) -> Any:
    """How often an operation has run in this session: an iterator that counts."""
    return step.own_resources.get_or_create(("times run", operation), itertools.count)


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = None,
    sep: str = " ",
    end: str | None = "\n",
    name: str | None = None,
) -> Operation:
    """An operation that writes values.

    Like every operation it runs only if something depends on it.

    Args:
        inputs: tensors, text and other values; lists and dicts of tensors are shown as such.
        output_stream: an open text file, or ``"file://<path>"``, to which it is appended; None for
            stderr as it is when the operation runs.
        summarize: how many elements at the beginning and at the end of each dimension are shown;
            None for 3, -1 for all.
        sep: between two of them.
        end: after the last one.
        name: of the operation.

    Raises:
        ValueError: the output is neither a file nor such a string.
    """
    if isinstance(output_stream, str) and not output_stream.startswith("file://"):
        raise ValueError(
            f"output_stream: got {output_stream!r}; expected an open text file or 'file://<path>'"
        )
    leaves = [one for one in nest.flatten(list(inputs)) if _is_deferred(one)]
    tensors = [convert_to_tensor(one) for one in leaves]
    most = _FEW if summarize is None else summarize

    def kernel(step: Any, *values: Any) -> None:
        texts = iter([_formatted(one, most) for one in values])
        shown = sep.join(_shown(one, texts) for one in inputs) + ("" if end is None else end)
        if isinstance(output_stream, str):
            with Path(output_stream.removeprefix("file://")).open("a", encoding="utf-8") as file:
                file.write(shown)
        else:
            (sys.stderr if output_stream is None else output_stream).write(shown)

    return op("PrintV2", tensors, (), kernel, name=name)


def _is_deferred(thing: Any) -> bool:
    return isinstance(thing, Tensor) or hasattr(thing, "_as_graph_element")


def _shown(thing: Any, texts: Any) -> str:
    if _is_deferred(thing):
        return str(next(texts))
    if isinstance(thing, dict):
        # The same order as that in which the values were flattened.
        parts = {key: _shown(thing[key], texts) for key in sorted(thing)}
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in parts.items()) + "}"
    if isinstance(thing, list | tuple):
        opening, closing = ("[", "]") if isinstance(thing, list) else ("(", ")")
        inside = ", ".join(_shown(one, texts) for one in thing)
        comma = "," if isinstance(thing, tuple) and len(thing) == 1 else ""
        return f"{opening}{inside}{comma}{closing}"
    return str(thing)


def _formatted(value: Any, most: int) -> str:
    """A value as ``tf.print`` shows it: all dimensions, the middle of long ones left out."""
    array = np.asarray(value, dtype=object if isinstance(value, bytes) else None)
    if array.ndim == 0:
        return _text(array[()])
    if most < 0 or len(array) <= 2 * most:
        parts = [_formatted(one, most) for one in array]
    else:
        head, tail = array[:most], array[len(array) - most :]
        parts = [_formatted(one, most) for one in head]
        parts += ["...", *(_formatted(one, most) for one in tail)]
    return f"[{(' ' if array.ndim == 1 else chr(10) + ' ').join(parts)}]"
