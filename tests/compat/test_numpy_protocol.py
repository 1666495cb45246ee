"""NumPy's functions on deferred tensors: what they give, and what is known of it beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import refused

VALUES: dict[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3) + 1,
    "v": np.array([3, 1, 2, 3], np.int32),
    "m": np.array([True, False, True, True]),
    "s": np.array([b"a", b"bc"], object),
}
FUNCTIONS = """
sin(x) ; add(x, x) ; add(v, m) ; divmod(v, 2) ; modf(x) ; logaddexp(x, x) ; add.reduce(x, axis=1)
add.accumulate(v) ; multiply.outer(v, v) ; add.reduce(v, where=m) ; mean(x, axis=0) ; sum(x)
concatenate([x, x], axis=1) ; stack((x, x)) ; block([v, v]) ; where(m) ; where(m, v, 0) ; unique(v)
unique(v, return_inverse=True, return_counts=True) ; nonzero(v) ; repeat(v, v) ; compress(m, v)
array_split(v, 3) ; meshgrid(v, v) ; broadcast_arrays(x, 1.0) ; linalg.svd(x) ; concatenate([s, s])
linalg.inv(matmul(transpose(x), x) + eye(3)) ; einsum('ij,kj->ik', x, x) ; add(s, s)
tensordot(x, x, ([1], [1])) ; sort(v) ; clip(x, 2, 4) ; reshape(x, (-1,)) ; pad(v, 1)
allclose(x, x) ; bincount(v) ; histogram(v, bins=3) ; percentile(x, 50)
interp(x, [0, 10], [0, 1]) ; fft.rfft(x) ; isin(v, [1, 2]) ; select([m, ~m], [v, -v])
full_like(v, 7) ; shape(x) ; linalg.eigh(matmul(transpose(x), x)) ; equal(v, array([3, 1, 1, 3]))
array([0.25, 9.0]) * x[0, :2] ; array([0.25, 9.0]) - x[0, :2] ; array([1, 5, 2, 9]) < v ; 2.0 / x
"""


@pytest.mark.parametrize(
    "shape", [None, *(pytest.param(one, marks=pytest.mark.slow) for one in ((2, 3), (None, 3)))]
)
def test_gives_what_numpy_gives(shape: Any) -> None:
    wrong = []
    for text in FUNCTIONS.strip().replace("\n", " ; ").split(" ; "):
        # How many sizes a shape has is not known if its rank is not: see TestRefused.
        if (text, shape) != ("shape(x)", None):
            try:
                with tf.Graph().as_default():
                    check(text, shape)
            except Exception as error:
                wrong.append(f"{text}: {error!r}")
    assert wrong == []


def check(text: str, shape: Any) -> None:
    def called(values: dict[str, Any]) -> Any:
        return eval(text, {**vars(np), "fft": np.fft}, values)

    wanted = called(VALUES)
    tensors = {name: tf.constant(value) for name, value in VALUES.items()}
    made = called({**tensors, "x": tf.placeholder_with_default(VALUES["x"], shape)})
    assert type(made) is (type(wanted) if isinstance(wanted, tuple | list) else tf.Tensor)
    several = isinstance(made, tuple | list)
    with tf.Session() as session:
        values = session.run(list(made) if several else [made])
    pairs = zip(made if several else [made], values, wanted if several else [wanted], strict=True)
    for tensor, value, theirs in pairs:
        theirs = np.asarray(theirs)
        assert tensor.shape.is_compatible_with(theirs.shape)
        assert np.asarray(value).dtype == tensor.dtype.as_numpy_dtype
        if theirs.dtype == object:
            assert value.tolist() == theirs.tolist()
        else:
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
        made: Any = np.sort(tf.constant([1.0]))
        assert (made.op.type, made.op.name) == ("sort", "sort")

    @pytest.mark.parametrize("function", [np.unique, np.flatnonzero])
    def test_sizes_that_depend_on_values_stay_unknown(self, function: Any) -> None:
        assert self.shape_of(function(tf.constant([3, 1, 2, 3]))) == [None]

    def test_large_arrays_are_not_made_to_find_out(self) -> None:
        x = tf.placeholder(tf.float32, [100_000, 100_000])
        assert np.sort(x).dtype == tf.float32
        assert np.sum(x, axis=0).shape.ndims == 1


def test_arrays_take_the_dtype_of_a_tensor_beside_them_and_two_tensors_promote(sess: Any) -> None:
    assert (np.array([8.0, 4.0]) / tf.constant([2.0, 4.0])).dtype == tf.float32
    assert (np.float64(2) * tf.constant([1.0])).dtype == tf.float32
    assert (np.int64(2) + tf.constant([1])).dtype == tf.int32
    assert sess.run(np.add(tf.constant([1.5]), tf.constant([1]))).tolist() == [2.5]
    refused(TypeError, "does not match type", lambda: tf.constant([1.5]) + tf.constant([1]))
    made = np.sqrt(tf.Variable([1.0, 4.0]))
    sess.run(tf.global_variables_initializer())
    assert sess.run(made).tolist() == [1, 2]


class TestRefused:
    @pytest.mark.parametrize(
        "call",
        [
            lambda x: np.add(x, 1, out=x),
            lambda x: np.add.at(x, [0], 1),
            lambda x: np.copyto(x, 1),
            lambda x: np.clip(x, 0, 1, out=x),
        ],
    )
    def test_nothing_writes_into_a_tensor(self, call: Any) -> None:
        refused(TypeError, "would write into a tensor", lambda: call(tf.constant([[1.0, 2.0]])))

    def test_tensors_are_no_arrays(self) -> None:
        with pytest.raises(NotImplementedError, match="Cannot convert a symbolic"):
            np.zeros(2) + np.array(tf.constant([1.0]))

    def test_results_that_depend_on_values(self) -> None:
        with pytest.raises(TypeError, match=r"only a run will tell; call it in a tf\.py_func"):
            np.shape(tf.placeholder(tf.float32))
        with pytest.raises(TypeError, match="whether it returns complex128, float64 depends"):
            np.emath.arcsin(tf.placeholder(tf.float64, [2]))


class TestWhatIsNotTried:
    def test_functions_of_functions_are_called_when_they_run(self, sess: Any) -> None:
        called = []

        def total(row: Any) -> Any:
            called.append(row)
            return row.sum()

        made = np.apply_along_axis(total, 1, tf.constant(VALUES["x"]))
        assert not called
        assert sess.run(made).tolist() == [6, 15]
        assert called

    def test_what_such_a_function_returns_is_checked(self, sess: Any) -> None:
        matrix = tf.constant(VALUES["x"])
        with pytest.raises(tf.errors.InvalidArgumentError, match="returned complex128, where"):
            sess.run(np.apply_along_axis(lambda row: 1j, 1, matrix))
        assert sess.run(np.apply_along_axis(lambda row: np.float16(1), 1, matrix)).dtype == "f4"

    def test_no_file_is_written_while_the_graph_is_built(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"numpy.save writes a file: call it in a tf.py_func"):
            np.save(tmp_path / "saved.npy", tf.constant([1, 2]))
        assert not list(tmp_path.iterdir())


def test_arrays_given_to_a_function_may_change_afterwards(sess: Any) -> None:
    array = np.array([1.0, 2.0])
    made = np.hypot(array, tf.constant([0.0, 0.0]))
    array[:] = 9
    assert sess.run(made).tolist() == [1, 2]


@pytest.mark.filterwarnings("error")
def test_no_warnings_from_what_tensorflow_computes_silently(sess: Any) -> None:
    first, second = sess.run((np.log(tf.constant([0.0, -1.0])), tf.constant([1.0]) / 0.0))
    assert np.isneginf(first[0])
    assert np.isnan(first[1])
    assert np.isposinf(second[0])
