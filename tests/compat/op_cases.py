"""What ops are tried with, here and in TensorFlow: cases by name, and how to make them.

Each case is a function of the module ``tf``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}

INTS = ("int8", "int16", "int32", "int64", "uint8")
FLOATS = ("float16", "float32", "float64")


def case(name: str, function: Case) -> None:
    assert name not in CASES, name
    CASES[name] = function


def values(dtype: str, *shape: int, start: int = -3) -> Any:
    """Small numbers, some of them negative unless the dtype has none."""
    count = int(np.prod(shape, dtype=int))
    numbers = np.arange(count) % 11 + (start if dtype[0] != "u" else 1)
    made = numbers.reshape(shape)
    return made.astype(dtype) if dtype[0] != "f" else (made * 0.75 + 0.1).astype(dtype)


def unknown(tf: Any, value: Any, shape: Any = None) -> Any:
    """`value` with a static shape that says less than it could."""
    return tf.placeholder_with_default(value, shape)


def u(tf: Any, value: Any) -> Any:
    return unknown(tf, value, None)


def part(tf: Any) -> Any:
    return unknown(tf, values("float32", 2, 3), [None, 3])


def parts(sparse: Any) -> list[Any]:
    return [sparse.indices, sparse.values, sparse.dense_shape]


class Scope(dict[str, Any]):
    """What names mean in a case that is written as an expression: first what is below, then `tf`'s.

    `i` and `f` make arrays of a shape, `u` a tensor whose type and shape are unknown.
    """

    def __init__(self, tf: Any) -> None:
        super().__init__(
            np=np,
            i=lambda *shape: values("int32", *shape),
            f=lambda *shape: values("float32", *shape),
            u=lambda value: unknown(tf, value),
            unknown=lambda value, shape: unknown(tf, value, shape),
            part=lambda: part(tf),
            values=values,
            parts=parts,
            sparse=lambda: tf.SparseTensor(
                unknown(tf, np.array([[0, 1], [1, 2]]), [None, 2]),
                unknown(tf, [b"a", b"bc"], [None]),
                [2, 4],
            ),
            after=lambda op: after(tf, op),
            scattered=lambda *arguments: scattered(tf, *arguments),
        )
        self.tf = tf

    def __missing__(self, name: str) -> Any:
        if not hasattr(self.tf, name):
            raise KeyError(name)
        return getattr(self.tf, name)


def expression(text: str) -> Case:
    """A case that is written as an expression."""
    code = compile(text, text, "eval")
    return lambda tf: eval(code, {}, Scope(tf))


def after(tf: Any, op: Any) -> Any:
    with tf.control_dependencies([op]):
        return tf.identity(tf.constant(1))


def scattered(tf: Any, op: str, places: Any, updates: Any, value: Any = (1.0, 2.0, 4.0)) -> Any:
    """A variable with some of its places written to, once it is initialised."""
    variable = tf.Variable(list(value), name="v")
    with tf.control_dependencies([variable.initializer]):
        indices = tf.identity(tf.constant(places))
    return getattr(tf, f"scatter_{op}")(variable, indices, updates)


class Outcome:
    """What a case gives: tensors with their values, or an error."""

    def __init__(self, tf: Any, function: Case) -> None:
        self.error: BaseException | None = None
        self.kinds: list[tuple[str, Any]] = []
        self.values: list[Any] = []
        self.when = "build"
        graph = tf.Graph()
        with graph.as_default():
            try:
                made = function(tf)
                tensors = list(made) if isinstance(made, list | tuple) else [made]
                self.kinds = [(one.dtype.base_dtype.name, static(one)) for one in tensors]
                self.when = "run"
                with tf.Session(graph=graph) as session:
                    self.values = session.run(tensors)
                    # A second run goes on with the next random numbers.
                    self.values += session.run(tensors) if graph_is_random(graph) else []
            except Exception as error:
                self.error = error


def graph_is_random(graph: Any) -> bool:
    return any("Random" in one.type or one.type == "Multinomial" for one in graph.get_operations())


def static(tensor: Any) -> Any:
    return tensor.shape.as_list() if tensor.shape.ndims is not None else None


def agree(one: Any, two: Any, what: str) -> None:
    """Check that two values are the same; floats to their last bits but a few."""
    one, two = np.asarray(one), np.asarray(two)
    assert (one.dtype, one.shape) == (two.dtype, two.shape), what
    if one.dtype.kind == "f":
        tolerance = {2: 2e-3, 4: 2e-6, 8: 1e-14}[one.dtype.itemsize]
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        assert one.tolist() == two.tolist(), what


def message_of(error: BaseException) -> str:
    """What went wrong, without where: TensorFlow 2 tells that in several lines."""
    text = getattr(error, "message", None) or str(error)
    if "Node: '" in text:
        text = text.split("Node: '", 1)[1].split("\n", 1)[1]
    return text.split("\n\t [[")[0].split(" for '")[0].strip()
