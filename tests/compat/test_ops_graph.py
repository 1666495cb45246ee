"""What ops look like in a graph: names, types, static values; random numbers, files, pictures."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue.compat.v1 as tf
from aioqueue.compat.v1.ops.static import constant_value, shape_value
from tests.compat.steps import refused


def run(*fetches: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetches[0] if len(fetches) == 1 else fetches)


def test_an_axis_that_comes_first_as_before_tensorflow_1_is_refused() -> None:
    refused(ValueError, r"\(2, 1\) must have rank 0.* after the values", tf.concat, 0, [[1], [2]])
    refused(ValueError, r"\(2,\) must have rank 0.* after the values", tf.split, 0, 2, [1, 2])


def test_an_assertion_of_a_tensor_and_itself_does_nothing() -> None:
    x = tf.constant([1])
    assert tf.assert_equal(x, x).type == "NoOp"


class TestOperators:
    """They are given to tensors from outside, each once."""

    def test_one_that_has_a_function_is_not_given_another(self) -> None:
        with pytest.raises(ValueError, match="operator __add__ cannot be overwritten again"):
            tf.Tensor._override_operator("__add__", lambda x, y: x)
        with pytest.raises(ValueError, match="operator __or__ cannot be overwritten again"):
            tf.Variable._override_operator("__or__", lambda x, y: x)

    @pytest.mark.parametrize("name", ["__eq__", "__bool__", "__hash__", "shape", "no such thing"])
    def test_only_operators_can_be_given_one(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"Overriding {name} is disallowed"):
            tf.Tensor._override_operator(name, lambda x, y: x)

    def test_each_that_can_be_given_one_has_one(self) -> None:
        missing = [one for one in tf.Tensor.OVERLOADABLE_OPERATORS if not hasattr(tf.Tensor, one)]
        assert missing == []
        assert {"__add__", "__rsub__", "__getitem__", "__lt__"} <= tf.Tensor.OVERLOADABLE_OPERATORS


class TestNames:
    def test_operators_are_called_as_in_tensorflow(self) -> None:
        with tf.Graph().as_default():
            x = tf.constant([1.0, 2.0], name="x")
            made = [x + 1, x - 1, x * 2, x / 2, x // 2, x % 2, x**2, -x, abs(x), x < 1, x[0]]
            assert [one.op.name for one in made] == [
                *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "Neg", "Abs", "Less"),
                "strided_slice",
            ]
            assert [one.op.type for one in made][:5] == [
                "AddV2",
                "Sub",
                "Mul",
                "RealDiv",
                "FloorDiv",
            ]

    def test_constants_are_called_after_the_argument(self) -> None:
        with tf.Graph().as_default() as graph:
            x = tf.constant(1.0)
            assert (x + 2).name == "add:0"
            assert (x + 2).name == "add_1:0"
            tf.reshape(x, [1], name="flat")
            names = [one.name for one in graph.get_operations()]
            assert names == ["Const", "add/y", "add", "add_1/y", "add_1", "flat/shape", "flat"]

    def test_within_a_scope(self) -> None:
        with tf.Graph().as_default(), tf.name_scope("outer"):
            assert tf.add(1, 2).name == "outer/Add:0"
            assert tf.reduce_sum([1.0]).name == "outer/Sum:0"
            assert tf.concat([[1], [2]], 0).name == "outer/concat:0"

    def test_equality_is_identity(self) -> None:
        x, y = tf.constant(1), tf.constant(1)
        assert (x == y) is False
        assert (x != y) is True
        assert len({x: 1, y: 2}) == 2


class TestStaticValues:
    def test_pure_ops_on_constants(self) -> None:
        value = tf.get_static_value(tf.constant([1, 2]) * 3 + tf.range(2))
        assert value is not None
        assert value.tolist() == [3, 7]

    def test_what_a_run_may_change(self) -> None:
        assert constant_value(tf.placeholder_with_default(1, [])) is None
        assert constant_value(tf.random_uniform([2], seed=1)) is None
        assert constant_value(tf.Variable(1) + 1) is None

    def test_what_fails_is_not_known(self) -> None:
        assert constant_value(tf.constant([1]) // tf.constant([0])) is None

    def test_shapes_in_part(self) -> None:
        x = tf.placeholder(tf.float32, [None, 3])
        shape = tf.shape(x)
        assert shape_value(shape) == (None, 3)
        assert shape_value(shape[1:]) == (3,)
        assert shape_value(tf.stack([shape[0], 7])) == (None, 7)
        assert shape_value(tf.concat([shape, [5]], 0)) == (None, 3, 5)
        assert shape_value(tf.cast(shape, tf.int64)) == (None, 3)
        assert tf.shape(x).op.type == "Shape"

    def test_deep_graphs(self) -> None:
        x = tf.constant([1])
        for _ in range(200):
            x = x + x
        assert constant_value(x) is None or constant_value(x).shape == (1,)
        assert x.shape.as_list() == [1]


class TestRandom:
    """The numbers themselves are on record; these are the promises about seeds."""

    def numbers(self, *, seed: int | None = None, graph_seed: int | None = None) -> list[float]:
        with tf.Graph().as_default():
            if graph_seed is not None:
                tf.set_random_seed(graph_seed)
            made = tf.random_uniform([4], seed=seed)
            with tf.Session() as session:
                found: list[float] = np.concatenate([session.run(made), session.run(made)]).tolist()
        return found

    def test_same_seed_same_numbers(self) -> None:
        assert self.numbers(seed=3) == self.numbers(seed=3)
        assert self.numbers(graph_seed=3) == self.numbers(graph_seed=3)
        assert self.numbers(seed=3) != self.numbers(seed=4)
        assert self.numbers(seed=3) != self.numbers(seed=3, graph_seed=3)
        assert self.numbers() != self.numbers()

    def test_normal_numbers(self) -> None:
        made = run(tf.random_normal([20_000], 5, 2, seed=1))
        assert abs(made.mean() - 5) < 0.1
        assert abs(made.std() - 2) < 0.1
        cut = run(tf.truncated_normal([20_000], 5, 2, seed=1))
        assert np.abs(cut - 5).max() <= 4
        assert abs(cut.mean() - 5) < 0.1

    def test_truncated_numbers_that_need_more_words_than_others(self) -> None:
        made = run(tf.truncated_normal([30_000], dtype=tf.float64, seed=7))
        assert np.abs(made).max() < 2, "and not NaN, as are those for which words were lacking"
        assert run(tf.truncated_normal([0, 3])).shape == (0, 3)


class TestFiles:
    def test_read_write_and_match(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "a.bin"
        tf.Session().run(tf.write_file(str(path), b"\0\xff"))
        assert path.read_bytes() == b"\0\xff"
        assert run(tf.read_file(str(path))) == b"\0\xff"
        (path.parent / "b.bin").write_bytes(b"")
        found = run(tf.matching_files(str(path.parent / "*.bin")))
        assert found.tolist() == [bytes(path), bytes(path.parent / "b.bin")]
        assert run(tf.matching_files([str(tmp_path / "*.x"), str(path)])).tolist() == [bytes(path)]

    def test_no_such_file(self) -> None:
        with pytest.raises(
            tf.errors.NotFoundError, match="/none; No such file or directory"
        ) as caught:
            run(tf.read_file("/none"))
        assert caught.value.op is not None

    def test_urls(self) -> None:
        pytest.importorskip("fsspec", reason="URLs need the extra files")
        run(tf.write_file("memory://folder/a.txt", "text"))
        assert run(tf.read_file("memory://folder/a.txt")) == b"text"
        assert run(tf.matching_files("memory://folder/*.txt")).tolist() == [
            b"memory:///folder/a.txt"
        ]
        with pytest.raises(tf.errors.NotFoundError, match="No such file"):
            run(tf.read_file("memory://folder/none"))


class TestGFile:
    def test_a_directory_may_be_there_already(self, tmp_path: Path) -> None:
        tf.gfile.MkDir(str(tmp_path / "new"))
        (tmp_path / "new" / "kept").write_text("")
        tf.gfile.MkDir(str(tmp_path / "new"))
        assert tf.gfile.ListDirectory(str(tmp_path / "new")) == ["kept"]
        with pytest.raises(tf.errors.AlreadyExistsError):
            tf.gfile.MkDir(str(tmp_path / "new" / "kept"))
        with pytest.raises(tf.errors.NotFoundError):
            tf.gfile.MkDir(str(tmp_path / "no" / "parent"))

    def test_directories(self, tmp_path: Path) -> None:
        tf.gfile.MakeDirs(str(tmp_path / "a" / "b"))
        tf.gfile.MakeDirs(str(tmp_path / "a" / "b"))
        with tf.gfile.Open(str(tmp_path / "a" / "x.txt"), "w") as file:
            file.write("one\ntwo")
        assert tf.gfile.ListDirectory(str(tmp_path / "a")) == ["b", "x.txt"]
        assert tf.gfile.IsDirectory(str(tmp_path / "a"))
        assert list(tf.gfile.Walk(str(tmp_path))) == [
            (str(tmp_path), ["a"], []),
            (str(tmp_path / "a"), ["b"], ["x.txt"]),
            (str(tmp_path / "a" / "b"), [], []),
        ]
        assert tf.gfile.Glob(str(tmp_path / "*" / "*.txt")) == [str(tmp_path / "a" / "x.txt")]
        tf.gfile.DeleteRecursively(str(tmp_path / "a"))
        assert not tf.gfile.Exists(str(tmp_path / "a"))

    def test_reading_and_writing(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x.txt")
        with tf.gfile.GFile(path, "w") as file:
            file.write("one\ntwo\n\u00e4")
        with tf.gfile.GFile(path, "a") as file:
            file.write(b"!")
        with tf.gfile.GFile(path) as file:
            assert file.size() == 11
            assert file.readline() == "one\n"
            assert file.tell() == 4
            assert list(file) == ["two\n", "\u00e4!"]
            file.seek(4)
            assert file.read(3) == "two"
        with tf.gfile.FastGFile(path, "rb") as file:
            assert file.read() == "one\ntwo\n\u00e4!".encode()

    def test_a_file_that_is_not_closed_is_closed_in_silence(self, tmp_path: Path) -> None:
        """Python would warn, as of its own files."""
        path = str(tmp_path / "x.txt")
        tf.gfile.GFile(path, "w").write("x")
        assert tf.gfile.GFile(path).read() == "x"
        gc.collect()

    def test_moving_and_copying(self, tmp_path: Path) -> None:
        one, two = str(tmp_path / "1"), str(tmp_path / "2")
        Path(one).write_text("x")
        tf.gfile.Copy(one, two)
        refused(tf.errors.AlreadyExistsError, "file already exists", tf.gfile.Rename, one, two)
        tf.gfile.Rename(one, two, overwrite=True)
        assert not tf.gfile.Exists(one)
        assert tf.gfile.Stat(two).length == 1
        tf.gfile.Remove(two)
        refused(tf.errors.NotFoundError, "", tf.gfile.Remove, two)

    def test_errors(self, tmp_path: Path) -> None:
        with pytest.raises(tf.errors.NotFoundError, match="/none; No such file or directory"):
            tf.gfile.GFile("/none").read()
        with pytest.raises(tf.errors.NotFoundError, match="Could not find directory"):
            tf.gfile.ListDirectory(str(tmp_path / "none"))
        with pytest.raises(tf.errors.PermissionDeniedError, match="isn't open for writing"):
            tf.gfile.GFile(str(tmp_path / "x")).write("x")
        with pytest.raises(tf.errors.InvalidArgumentError, match="mode: got 'x'"):
            tf.gfile.GFile(str(tmp_path / "x"), "x")

    def test_urls(self) -> None:
        pytest.importorskip("fsspec", reason="URLs need the extra files")
        with tf.gfile.GFile("memory://gfile/a.txt", "w") as file:
            file.write("text")
        assert tf.gfile.Exists("memory://gfile/a.txt")
        assert tf.gfile.ListDirectory("memory://gfile") == ["a.txt"]
        assert tf.gfile.Stat("memory://gfile/a.txt").length == 4
        with tf.gfile.GFile("memory://gfile/a.txt") as file:
            assert file.read() == "text"


@pytest.mark.parametrize(("kind", "kept"), [("jpeg", -8), ("png", -20)])
def test_a_picture_that_is_cut_off(kind: str, kept: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pip install '.[images]'")
    file = io.BytesIO()
    image.fromarray((np.arange(60) * 3).astype(np.uint8).reshape(4, 5, 3)).save(file, kind)
    contents = file.getvalue()[:kept]
    message = rf"Invalid {kind.upper()} data.*data size {len(contents)}: .*truncated"
    refused(tf.errors.InvalidArgumentError, message, lambda: run(tf.image.decode_image(contents)))
