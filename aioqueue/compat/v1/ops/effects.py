"""Operations with effects: `Assert`, which fails with values, `Print`, `print` and `py_func`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aioqueue.compat.v1.core import dtypes, nest
from aioqueue.compat.v1.core.convert import as_value, convert_to_tensor, plain_value
from aioqueue.compat.v1.core.default_graph import op
from aioqueue.compat.v1.core.dtypes import DType, as_dtype
from aioqueue.compat.v1.core.graph import Operation, Tensor
from aioqueue.compat.v1.core.scopes import name_scope
from aioqueue.compat.v1.core.shapes import unknown_shape
from aioqueue.compat.v1.ops.building import call_python, invalid

__all__ = ("Assert", "Print", "numpy_function", "print", "py_func")

_ESCAPES: Final = {
    ord(one): f"\\{letter}" for one, letter in zip("\n\r\t\"'\\", "nrt\"'\\", strict=True)
}


def c_name(dtype: DType) -> str:
    """A dtype as TensorFlow's messages call it."""
    return {"float16": "half", "float32": "float", "float64": "double"}.get(dtype.name, dtype.name)


def c_escaped(text: bytes) -> str:
    """Bytes as C spells them, which is how TensorFlow shows strings: others by octal numbers."""
    spelled = {one: chr(one) if 32 <= one < 127 else f"\\{one:03o}" for one in set(text)}
    return "".join(_ESCAPES.get(one) or spelled[one] for one in text)


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
    """Rows in brackets, with dots in one that is not shown to its end."""
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
    """An operation that fails with `data` unless `condition` is true."""
    most = _FEW if summarize is None else summarize
    with name_scope(name, "Assert", [condition]):
        values = list(data)
        for one in values:
            convert_to_tensor(one)  # twice, as TensorFlow does: derived seeds count operations

        def kernel(step: Any, holds: Any, *found: Any) -> None:
            if not np.all(holds):
                texts = " ".join(summarize_value(one, most) for one in found)
                raise invalid(f"assertion failed: {texts}")

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
    """A tensor with the value of `input_`; whenever it is computed `data` is written to stderr."""
    most = _FEW if summarize is None else summarize

    def kernel(step: Any, value: Any, *values: Any) -> Any:
        # How often it has run in this session.
        counter = step.own_resources.get_or_create(("times run", made), itertools.count)
        if first_n is None or first_n < 0 or next(counter) < first_n:
            shown = "".join(summarize_value(one, most) for one in values)
            sys.stderr.write(f"{message or ''}{shown}\n")
        return value

    with name_scope(name, "Print") as scope:
        tensor = convert_to_tensor(input_, name="input")
        tensors = [convert_to_tensor(one, name=f"data_{i}") for i, one in enumerate(data)]
        outputs = [(tensor.dtype, tensor.shape)]
        made = op("Print", [tensor, *tensors], outputs, kernel, name=scope)
    return made.outputs[0]


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = None,
    sep: str = " ",
    end: str | None = "\n",
    name: str | None = None,
) -> Operation:
    """An operation that writes values."""
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


_tokens = itertools.count()


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803  # TensorFlow's name
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """What a Python function makes of the values of some tensors, in each run.

    ValueError and TypeError become `InvalidArgumentError`, StopIteration `OutOfRangeError`,
    NotImplementedError `UnimplementedError`, MemoryError `ResourceExhaustedError`, and all else, an
    `OpError` too, `UnknownError`: the end of another input is not the end of this one.
    """
    if not callable(func):
        raise TypeError(f"func: got {func!r}; expected a function")
    several = isinstance(Tout, list | tuple)
    promised = [as_dtype(one) for one in (Tout if several else [Tout])]
    token = f"pyfunc_{next(_tokens)}"

    def kernel(step: Any, *values: Any) -> Any:
        made = call_python(func, *[_writable(one) for one in values])
        results = () if made is None else made if isinstance(made, list | tuple) else (made,)
        if len(results) != len(promised):
            raise invalid(
                f"{token} returns {len(results)} values, but expects to see {len(promised)} values."
            )
        checked = tuple(
            _checked(index, one, dtype, token)
            for index, (one, dtype) in enumerate(zip(results, promised, strict=True))
        )
        return checked if len(checked) != 1 else checked[0]

    with name_scope(name, "PyFunc", inp) as scope:
        tensors = [convert_to_tensor(one, name=f"input_{i}") for i, one in enumerate(inp)]
        outputs = [(dtype, unknown_shape()) for dtype in promised]
        made = op("PyFunc", tensors, outputs, kernel, name=scope, attrs={"token": token})
    if not promised:
        return made
    return made.outputs if several else made.outputs[0]


numpy_function = py_func


def _writable(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()
    return value


def _checked(index: int, value: Any, dtype: DType, token: str) -> Any:
    """A result as kernels pass it on; a NumPy value must have the dtype that was promised."""
    if isinstance(value, np.ndarray | np.generic):
        found = dtypes.as_dtype(value.dtype)
        if found is not dtype:
            raise invalid(
                f"{index}-th value returned by {token} is {c_name(found)}, but expects"
                f" {c_name(dtype)}"
            )
        if value.dtype.kind != "O" and value.dtype.kind not in "SU":
            # The function may keep the array and change it later.
            return plain_value(np.array(value))
    return as_value(value, dtype)
