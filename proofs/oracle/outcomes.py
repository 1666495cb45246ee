"""What is seen of a program, in a form in which two libraries can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = (
    "Outcome",
    "about",
    "described",
    "failed",
    "form",
    "is_as_informative",
    "made",
    "nearly",
    "text_of",
)

Outcome = tuple[Any, ...]
"""Nested tuples of plain values; equal for equal behaviour."""

TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-11, "complex64": 1e-5}
"""How far numbers may be apart, of one or of the larger of the two, where their last bits depend
on the order in which a library adds, and on whose `exp` it calls."""

# Queues and other resources without a shared name are numbered through the whole process.
PRIVATE_NUMBER = re.compile(r"'_\d+_")
# TensorFlow 2 tells first where a node was made, and that there were others if several failed.
PREAMBLE = re.compile(
    r"\AGraph execution error:\n\n(.*?^Node: '[^\n]*'\n)*", re.DOTALL | re.MULTILINE
)
SEVERAL = re.compile(r"\A\d+ root error\(s\) found\.\n\s*\(0\) \w+: ")
NODE = re.compile(r"\s*\n\s*\[\[.*", re.DOTALL)
# How TensorFlow 2 shows the node that was to be built.
BUILT_NODE = re.compile(r" for '\{\{node .*| for '[^']*' \(op: .*", re.DOTALL)
# What TensorFlow 2 says around the message of TensorFlow 1.
AROUND = re.compile(
    r"\A(component_\d+: "
    r"|Expected \w+ passed to parameter '\w+' of op '\w+', got .* of type '\w+' instead\. Error: "
    r"|Tried to convert '\w+' to a tensor and failed\. Error: )",
    re.DOTALL,
)
# Where a Python function failed, and where a variable was made, which only TensorFlow 2 tells.
TRACEBACK = re.compile(
    r"\n+Traceback \(most recent call last\):\n.*|(?<=Originally defined at:).*", re.DOTALL
)
# What TensorFlow 2 puts before a message as text, which is not to be relied on.
DEBUG = re.compile(r"goo\.gle/debug\w* *")
# Python functions are numbered through the whole process.
FUNCTION_NUMBER = re.compile(r"\bpyfunc_\d+\b")
# The op that parses examples, of which TensorFlow 2 has a second version.
PARSING = re.compile(r"(?<=Example)(_\d+)?/Parse(Single)?(Sequence)?Example\w*(/\w+)?\Z")
# The nodes of an assertion, within what asserts.
ASSERTION = re.compile(r"/Assert(_\d+)?(/Assert)?\Z")
# Two ops that `logical_xor` is made of: TensorFlow runs both at once, and either may fail first.
EITHER = re.compile(r"\bLogical(Or|And)(_\d+)?\Z")
# Shapes that do not fit: TensorFlow exchanges operands where it can, to have constants first.
NO_FIT = re.compile(r"(?<=Incompatible shapes: )(\[[\d,]*\]) vs\. (\[[\d,]*\])")
# Kinds of pictures that TensorFlow 2.21 reads beside those of TensorFlow 1.
NEWER_KINDS = re.compile(r"JPEG XL, |, WebP(?= required)")
# The names of threads, which come out of a set.
STRAGGLERS = re.compile(r"(?<=threads still running: ).*")


def described(value: Any) -> Outcome:
    """A value that a session returned: its type, dtype, shape and contents."""
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, _listed(value.tolist()))
    if isinstance(value, np.generic):
        return ("scalar", str(value.dtype), repr(value.item()))
    if isinstance(value, Mapping):
        return ("dict", *((str(key), described(item)) for key, item in sorted(value.items())))
    if isinstance(value, (list, tuple)):
        return (_sequence(value), *map(described, value))
    return (type(value).__name__, repr(value))


def made(value: Any) -> Outcome:
    """Something that a line of a program has built: names, dtypes, shapes."""
    if isinstance(value, (list, tuple)):
        return (_sequence(value), *map(made, value))
    if isinstance(value, Mapping):
        return ("dict", *((str(key), made(item)) for key, item in sorted(value.items())))
    if hasattr(value, "enqueue_many"):
        dtypes = tuple(str(getattr(dtype, "name", dtype)) for dtype in value.dtypes)
        shapes = tuple(map(str, value.shapes))
        return ("queue", type(value).__name__, value.name, dtypes, shapes, str(value.names))
    if hasattr(value, "value_index"):
        return ("tensor", value.name, value.dtype.name, str(value.shape))
    if hasattr(value, "outputs") and hasattr(value, "type"):
        return ("operation", value.name, value.type)
    if hasattr(value, "initializer") and hasattr(value, "dtype"):
        return ("variable", value.name, value.dtype.base_dtype.name, str(value.shape))
    if isinstance(value, (bool, int, float, str, bytes, type(None), np.generic, np.ndarray)):
        return described(value)
    return (type(value).__name__,)


def about(outcome: Outcome) -> Outcome:
    """What was seen, of which the last bits of floats are of no interest."""
    return ("about", outcome)


def nearly(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same but for the last bits of floats."""
    if not (isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)):
        return bool(one == other)
    if one and one[0] in ("array", "scalar") and one[:-1] == other[:-1]:
        tolerance = TOLERANCES.get(one[1])
        if tolerance is not None:
            return np.allclose(_numbers(one), _numbers(other), tolerance, tolerance, True)
    return all(map(nearly, one, other))


def _numbers(outcome: Outcome) -> Any:
    """The floats of an array or a scalar that `told` has spelled."""
    return np.vectorize(complex, otypes=[complex])(np.array(outcome[-1]))


def form(tensor: Any) -> Outcome:
    """What is known of a tensor, or of several, before they are computed."""
    if isinstance(tensor, Mapping):
        return ("dict", *((str(key), form(item)) for key, item in sorted(tensor.items())))
    if isinstance(tensor, (list, tuple)):
        return (_sequence(tensor), *map(form, tensor))
    if hasattr(tensor, "dense_shape"):
        return ("sparse tensor", tensor.dtype.name, _static(tensor.get_shape()))
    if not hasattr(tensor, "dtype"):
        return described(tensor)
    return ("tensor", tensor.dtype.base_dtype.name, _static(tensor.shape))


def _static(shape: Any) -> Outcome:
    return ("shape", None if shape.ndims is None else tuple(shape.as_list()))


def is_as_informative(expected: Any, got: Any) -> bool:
    """Whether two forms are the same, but for sizes that are known only in the second."""
    if not (isinstance(expected, tuple) and isinstance(got, tuple)):
        return bool(expected == got)
    if expected[:1] == got[:1] == ("shape",):
        few, many = expected[1], got[1]
        return few is None or (
            many is not None
            and len(few) == len(many)
            and all(one in (None, other) for one, other in zip(few, many, strict=True))
        )
    return len(expected) == len(got) and all(map(is_as_informative, expected, got))


def failed(error: BaseException) -> Outcome:
    """An exception: its class, what it says, and the op that failed."""
    op = getattr(error, "op", None)
    text = text_of(error)
    where = None if op is None else PARSING.sub(r"\1", ASSERTION.sub("", op.name))
    if where is not None and text.startswith("Incompatible shapes"):
        where = EITHER.sub("LogicalOr or LogicalAnd", where)
    return ("raises", type(error).__name__, text, where)


def text_of(error: BaseException) -> str:
    """The message of an exception, without numbers and places that are the library's own."""
    text = str(getattr(error, "message", error))
    text = SEVERAL.sub("", PREAMBLE.sub("", text))
    text = FUNCTION_NUMBER.sub("pyfunc_N", DEBUG.sub("", TRACEBACK.sub("", text)))
    text = BUILT_NODE.sub("", NODE.sub("", text))
    text = STRAGGLERS.sub(lambda found: " ".join(sorted(found[0].split())), text)
    text = NEWER_KINDS.sub("", text)
    text = NO_FIT.sub(lambda found: " vs. ".join(sorted(found.groups())), text)
    return AROUND.sub("", PRIVATE_NUMBER.sub("'_N_", text)).strip()


def _sequence(value: Any) -> str:
    """What kind of sequence it is; of named tuples, whose classes have many names, the fields."""
    return " ".join(getattr(value, "_fields", [type(value).__name__]))


def _listed(values: Any) -> Any:
    """Nested lists as tuples, with numbers spelled so that NaN equals itself."""
    if isinstance(values, list):
        return tuple(map(_listed, values))
    return repr(values)
