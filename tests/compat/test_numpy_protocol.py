"""NumPy's functions on deferred tensors: what they give, and what is known of it beforehand."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
VECTOR = np.array([3, 1, 2, 3], np.int32)
MASK = np.array([True, False, True, True])

Function = Callable[[Any, Any, Any], Any]
FUNCTIONS: dict[str, Function] = {
    "sin": lambda x, v, m: np.sin(x),
    "add": lambda x, v, m: np.add(x, x),
    "promotes": lambda x, v, m: np.add(v, m),
    "divmod": lambda x, v, m: np.divmod(v, 2),
    "modf": lambda x, v, m: np.modf(x),
    "logaddexp": lambda x, v, m: np.logaddexp(x, x),
    "reduce": lambda x, v, m: np.add.reduce(x, axis=1),
    "accumulate": lambda x, v, m: np.add.accumulate(v),
    "outer": lambda x, v, m: np.multiply.outer(v, v),
    "where=": lambda x, v, m: np.add.reduce(v, where=m),
    "mean": lambda x, v, m: np.mean(x, axis=0),
    "sum": lambda x, v, m: np.sum(x),
    "concatenate": lambda x, v, m: np.concatenate([x, x], axis=1),
    "stack": lambda x, v, m: np.stack((x, x)),
    "block": lambda x, v, m: np.block([v, v]),
    "where": lambda x, v, m: np.where(m),
    "where three": lambda x, v, m: np.where(m, v, 0),
    "unique": lambda x, v, m: np.unique(v),
    "unique more": lambda x, v, m: np.unique(v, return_inverse=True, return_counts=True),
    "nonzero": lambda x, v, m: np.nonzero(v),
    "repeat": lambda x, v, m: np.repeat(v, v),
    "compress": lambda x, v, m: np.compress(m, v),
    "array_split": lambda x, v, m: np.array_split(v, 3),
    "meshgrid": lambda x, v, m: np.meshgrid(v, v),
    "broadcast_arrays": lambda x, v, m: np.broadcast_arrays(x, 1.0),
    "svd": lambda x, v, m: np.linalg.svd(x),
    "inv": lambda x, v, m: np.linalg.inv(np.matmul(np.transpose(x), x) + np.eye(3)),
    "einsum": lambda x, v, m: np.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x, v, m: np.tensordot(x, x, ([1], [1])),
    "sort": lambda x, v, m: np.sort(v),
    "clip": lambda x, v, m: np.clip(x, 2, 4),
    "reshape": lambda x, v, m: np.reshape(x, (-1,)),
    "pad": lambda x, v, m: np.pad(v, 1),
    "allclose": lambda x, v, m: np.allclose(x, x),
    "bincount": lambda x, v, m: np.bincount(v),
    "histogram": lambda x, v, m: np.histogram(v, bins=3),
    "percentile": lambda x, v, m: np.percentile(x, 50),
    "interp": lambda x, v, m: np.interp(x, [0, 10], [0, 1]),
    "rfft": lambda x, v, m: np.fft.rfft(x),
    "isin": lambda x, v, m: np.isin(v, [1, 2]),
    "select": lambda x, v, m: np.select([m, ~m], [v, -v]),
    "full_like": lambda x, v, m: np.full_like(v, 7),
    "shape": lambda x, v, m: np.shape(x),
}
SHAPES = {"known": (2, 3), "in part": (None, 3), "unknown": None}


def results(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


@pytest.mark.parametrize(
    "known",
    ["unknown", *(pytest.param(one, marks=pytest.mark.slow) for one in ("known", "in part"))],
)
def test_gives_what_numpy_gives(known: str) -> None:
    wrong = []
    for name in FUNCTIONS:
        # How many sizes a shape has is not known if its rank is not: see TestRefused.
        if (name, known) != ("shape", "unknown"):
            try:
                with tf.Graph().as_default():
                    check(FUNCTIONS[name], SHAPES[known])
            except Exception as error:
                wrong.append(f"{name}: {error!r}")
    assert wrong == []


def check(function: Function, shape: Any) -> None:
    wanted = function(MATRIX, VECTOR, MASK)
    tensors = [tf.placeholder_with_default(MATRIX, shape), tf.constant(VECTOR), tf.constant(MASK)]
    made = function(*tensors)
    assert type(made) is (type(wanted) if isinstance(wanted, tuple | list) else tf.Tensor)
    with tf.Session() as session:
        values = session.run(results(made))
    for tensor, value, theirs in zip(results(made), values, results(wanted), strict=True):
        theirs = np.asarray(theirs)
        assert tensor.shape.is_compatible_with(theirs.shape)
        assert np.asarray(value).dtype == tensor.dtype.as_numpy_dtype
        np.testing.assert_allclose(value, theirs, rtol=1e-4)


class TestStatic:
    """What is known before anything runs."""

    def shape_of(self, tensor: Any) -> Any:
        return tensor.shape.as_list() if tensor.shape.ndims is not None else None

    def test_ufuncs_broadcast(self) -> None:
        x = tf.placeholder(tf.float32, [None, 1, 3])
        assert self.shape_of(np.arctan2(x, np.ones([4, 1], np.float32))) == [None, 4, 3]
        assert np.isnan(x).dtype == tf.bool
        assert self.shape_of(np.sqrt(tf.placeholder(tf.float32))) is None

    def test_functions_are_tried_on_samples(self) -> None:
        x = tf.placeholder(tf.float32, [None, 3])
        assert self.shape_of(np.concatenate([x, x], axis=1)) == [None, 6]
        assert self.shape_of(np.mean(x, axis=0)) == [3]
        assert self.shape_of(np.linalg.norm(x, axis=1)) == [None]

    @pytest.mark.parametrize("function", [np.unique, np.flatnonzero])
    def test_sizes_that_depend_on_values_stay_unknown(self, function: Any) -> None:
        assert self.shape_of(function(tf.constant([3, 1, 2, 3]))) == [None]

    def test_large_arrays_are_not_made_to_find_out(self) -> None:
        x = tf.placeholder(tf.float32, [100_000, 100_000])
        assert np.sort(x).dtype == tf.float32
        assert np.sum(x, axis=0).shape.ndims == 1

    def test_names_and_types_are_numpys(self) -> None:
        made: Any = np.sort(tf.constant([1.0]))
        assert made.op.type == "sort"
        assert made.name.split(":")[0].startswith("sort")

    def test_named_tuples_stay_what_they_are(self) -> None:
        made: Any = np.linalg.eigh(tf.constant(np.eye(2)))
        assert isinstance(made, tuple)
        assert tf.Session().run(made[0]).tolist() == [1, 1]


class TestOperatorsWithArrays:
    """An array beside a tensor takes the tensor's dtype, on either side."""

    @pytest.mark.parametrize(
        "operate", [operator.add, operator.sub, operator.mul, operator.truediv]
    )
    def test_array_on_the_left(self, operate: Any) -> None:
        array = np.array([8.0, 4.0])
        made = operate(array, tf.constant([2.0, 4.0]))
        assert made.dtype == tf.float32
        assert tf.Session().run(made).tolist() == operate(array, np.array([2.0, 4.0])).tolist()

    def test_scalars(self) -> None:
        assert (np.float64(2) * tf.constant([1.0])).dtype == tf.float32
        assert (np.int64(2) + tf.constant([1])).dtype == tf.int32

    def test_comparison(self) -> None:
        made = np.array([1, 5]) < tf.constant([2, 2])
        assert tf.Session().run(made).tolist() == [True, False]

    def test_explicit_calls_promote_two_tensors(self) -> None:
        made = np.add(tf.constant([1.5]), tf.constant([1]))
        assert tf.Session().run(made).tolist() == [2.5]
        with pytest.raises(TypeError, match="does not match type"):
            tf.constant([1.5]) + tf.constant([1])

    def test_variables(self) -> None:
        variable = tf.Variable([1.0, 4.0])
        made = np.sqrt(variable)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(made).tolist() == [1, 2]


class TestRefused:
    @pytest.mark.parametrize(
        "call",
        [
            lambda x: np.add(x, 1, out=x),
            lambda x: np.add.at(x, [0], 1),
            lambda x: np.copyto(x, 1),
            lambda x: np.fill_diagonal(x, 1),
            lambda x: np.clip(x, 0, 1, out=x),
        ],
    )
    def test_nothing_writes_into_a_tensor(self, call: Any) -> None:
        with pytest.raises(TypeError, match="would write into a tensor"):
            call(tf.constant([[1.0, 2.0]]))

    def test_tensors_are_no_arrays(self) -> None:
        with pytest.raises(NotImplementedError, match="Cannot convert a symbolic"):
            np.asarray(tf.constant([1.0]))
        with pytest.raises(NotImplementedError, match="Cannot convert a symbolic"):
            np.zeros(2) + np.array(tf.constant([1.0]))

    def test_a_number_of_results_that_depends_on_values(self) -> None:
        with pytest.raises(TypeError, match=r"only a run will tell; call it in a tf\.py_func"):
            np.shape(tf.placeholder(tf.float32))


class TestWhatIsNotTried:
    def test_functions_of_functions_are_called_when_they_run(self) -> None:
        called = []

        def total(row: Any) -> Any:
            called.append(row)
            return row.sum()

        made = np.apply_along_axis(total, 1, tf.constant(MATRIX))
        assert not called
        assert tf.Session().run(made).tolist() == [6, 15]
        assert called

    def test_what_such_a_function_returns_is_checked(self) -> None:
        made = np.apply_along_axis(lambda row: 1j, 1, tf.constant(MATRIX))
        with pytest.raises(tf.errors.InvalidArgumentError, match="returned complex128, where"):
            tf.Session().run(made)

    def test_files_are_written_when_they_run(self, tmp_path: Path) -> None:
        path = tmp_path / "saved.npy"
        writes: Any = np.save(path, tf.constant([1, 2]))  # type: ignore[func-returns-value]
        assert not path.exists()
        tf.Session().run(writes)
        assert np.load(path).tolist() == [1, 2]


def test_arrays_given_to_a_function_may_change_afterwards() -> None:
    array = np.array([1.0, 2.0])
    made = np.hypot(array, tf.constant([0.0, 0.0]))
    array[:] = 9
    assert tf.Session().run(made).tolist() == [1, 2]


def test_no_warnings_from_what_tensorflow_computes_silently() -> None:
    made = np.log(tf.constant([0.0, -1.0])), tf.constant([1.0]) / 0.0
    first, second = tf.Session().run(made)
    assert np.isneginf(first[0])
    assert np.isnan(first[1])
    assert np.isposinf(second[0])
