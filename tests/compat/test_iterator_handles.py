"""Iterators that a fed string chooses: `string_handle` and `from_string_handle`."""

from __future__ import annotations

from typing import Any

import pytest

import aioqueue.compat.v1 as tf

Dataset, Iterator = tf.data.Dataset, tf.data.Iterator


def chosen(types: Any, shapes: Any = None, classes: Any = None) -> tuple[Any, Any]:
    """A placeholder for a handle, and what the iterator that it chooses gives next."""
    handle = tf.placeholder(tf.string, shape=[])
    return handle, Iterator.from_string_handle(handle, types, shapes, classes).get_next()


def test_each_run_goes_on_with_the_one_that_is_fed(sess: Any) -> None:
    train = tf.data.make_one_shot_iterator(Dataset.range(3))
    valid = tf.data.make_initializable_iterator(Dataset.range(10, 12))
    handle, following = chosen(tf.int64, tf.TensorShape([]))
    assert following.dtype is tf.int64
    assert following.shape.as_list() == []
    one, two = sess.run([train.string_handle(), valid.string_handle()])
    assert one != two
    assert sess.run(train.string_handle()) == one
    with pytest.raises(tf.errors.FailedPreconditionError):
        sess.run(following, {handle: two})
    sess.run(valid.initializer)
    assert [sess.run(following, {handle: which}) for which in (one, two, one, two)] == [
        0,
        10,
        1,
        11,
    ]
    with pytest.raises(tf.errors.OutOfRangeError):
        sess.run(following, {handle: two})
    assert sess.run(following, {handle: one}) == 2
    sess.run(valid.initializer)
    assert sess.run(following, {handle: two}) == 10


def test_of_an_iterator_without_a_dataset_of_its_own(sess: Any) -> None:
    iterator = Iterator.from_structure(tf.int64)
    name = sess.run(iterator.string_handle())
    sess.run(iterator.make_initializer(Dataset.range(5, 7)))
    handle, following = chosen(tf.int64)
    assert sess.run(following, {handle: name}) == 5


def test_elements_in_a_nesting_and_sparse_ones(sess: Any) -> None:
    dataset = Dataset.range(3, 5).map(
        lambda n: {"a": n, "b": tf.SparseTensor([[1]], tf.expand_dims(n * 2, 0), [4])}
    )
    name = sess.run(tf.data.make_one_shot_iterator(dataset).string_handle())
    handle, following = chosen(dataset.output_types, dataset.output_shapes, dataset.output_classes)
    found = sess.run({"a": following["a"], "b": following["b"]}, {handle: name})
    assert found["a"] == 3
    assert found["b"].values.tolist() == [6]


@pytest.mark.parametrize(
    ("types", "shapes", "message"),
    [
        (tf.float32, None, "Data type mismatch at component 0: expected float but got int64"),
        (tf.int64, tf.TensorShape([2]), r"at component 0: expected \[2\] but got \[\]"),
        ((tf.int64, tf.int64), None, "does not match: expected 2 types but got 1"),
    ],
)
def test_an_iterator_of_other_elements(sess: Any, types: Any, shapes: Any, message: str) -> None:
    name = sess.run(tf.data.make_one_shot_iterator(Dataset.range(3)).string_handle())
    handle, following = chosen(types, shapes)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sess.run(following, {handle: name})


def test_a_string_that_is_no_handle_here(sess: Any) -> None:
    handle, following = chosen(tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse string_handle"):
        sess.run(following, {handle: "train"})
    name = sess.run(tf.data.make_one_shot_iterator(Dataset.range(3)).string_handle())
    with tf.Session() as other, pytest.raises(tf.errors.NotFoundError, match="in this session"):
        other.run(following, {handle: name})
    with pytest.raises(ValueError, match="dtype"):
        Iterator.from_string_handle(tf.constant(3), tf.int64)
