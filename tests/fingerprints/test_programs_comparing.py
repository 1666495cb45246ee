"""What a cache and a resumed write compare, and what they say about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import (
    Retry,
    arrays,
    items,
    numbers,
    read_csv,
    read_lines,
    read_parquet,
    read_tar,
    to_json_lines,
)
from aioqueue.pipeline import part_folder
from aioqueue.pipeline.fingerprint import code_of, options_of

pytest.importorskip("pyarrow")
pytest.importorskip("cloudpickle")


def failure_of(call: Callable[[], object]) -> str:
    """The message of the one failure that a call raises."""
    with pytest.raises((InvalidArgumentError, ExceptionGroup)) as caught:
        call()
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, InvalidArgumentError)
    return str(error)


def times(factor: Any) -> Callable[[Any], Any]:
    def multiplied(number: Any) -> Any:
        return number * factor

    return multiplied


class Ratio:
    """A value with an attribute, and with some that nobody reads."""

    def __init__(self, up: Any) -> None:
        self.up = up
        self.run = uuid.uuid4()
        self.rng = np.random.default_rng()
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        return number * int(self.up)


class TestMessages:
    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            (1, 2, r"multiplied closure factor is 1 there, and 2 now"),
            ("a", "b", r"closure factor is \"'a'\" there, and \"'b'\" now"),
            ([1, 2], [1, 3], r"closure factor is '\[1, 2\]' there, and '\[1, 3\]' now"),
            (Path("a"), Path("b"), r"Path\('a'\) \(\w+\)\" there, and \".*Path\('b'\)"),
            (np.zeros(3), np.ones(3), r"closure factor is 'ndarray \w+' there, and 'ndarray"),
            (1, True, r"is 1 there, and True now"),
            (1, 1.0, r"is 1 there, and '1.0' now"),
        ],
    )
    def test_a_message_shows_the_old_and_the_new_value(
        self, old: Any, new: Any, expected: str, tmp_path: Path
    ) -> None:
        list(numbers(0, seed=1).prepare(times(old)).cache(tmp_path))
        cached = numbers(0, seed=1).prepare(times(new)).cache(tmp_path)
        message = failure_of(lambda: list(cached))
        assert re.search(rf"code\.0 prepare multiplied\..*{expected}", message)
        assert "on_stale='rebuild'" in message

    def test_an_attribute_is_named(self, tmp_path: Path) -> None:
        list(numbers(3, seed=1).prepare(Ratio(1)).cache(tmp_path))
        list(numbers(3, seed=1).prepare(Ratio(1)).cache(tmp_path))  # the others nobody reads
        message = failure_of(lambda: list(numbers(3, seed=1).prepare(Ratio(2)).cache(tmp_path)))
        assert "code.0 prepare Ratio.function.up is 1 there, and 2 now" in message

    @pytest.mark.parametrize("name", ["api_key", "token"])
    def test_secrets_are_not_written_down(self, name: str, tmp_path: Path) -> None:
        space: dict[str, Any] = {"__name__": __name__}
        exec(f"def made({name}):\n    return lambda x: (x, {name})[0]", space)
        list(numbers(3, seed=1).prepare(space["made"]("hunter2")).cache(tmp_path))
        drawn = "Zm9vYmFyYmF6cXV4MTIzNDU2"
        list(numbers(3, seed=1).prepare(times(1)).prepare(lambda x: (x, drawn)[0]).cache())
        for path in tmp_path.rglob("*"):
            assert b"hunter2" not in path.read_bytes()
        assert drawn not in str(code_of(numbers(3).prepare(lambda x: (x, drawn)[0])))

    def test_what_differs_each_time_is_refused(self) -> None:
        class Drawn:
            def __reduce__(self) -> Any:
                return uuid.UUID, (str(uuid.uuid4()),)

        message = failure_of(lambda: numbers(3).prepare(times(Drawn())).cache("nowhere"))
        assert re.search(r"multiplied closure factor is another one each time", message)

    def test_what_is_too_deep_is_refused(self) -> None:
        deep: Any = []
        for _ in range(10_000):
            deep = [deep]
        message = failure_of(lambda: numbers(3).prepare(times(deep)).cache("nowhere"))
        assert "nested too deeply" in message
        numbers(3).prepare(times(deep)).cache("nowhere", key="1")

    def test_a_source_is_refused_by_name(self) -> None:
        rngs = [np.random.default_rng(0)]
        message = failure_of(lambda: items(rngs, seed=1).cache("nowhere"))
        assert re.search(
            r"source uses items\[0\], a numpy\.\S*Generator.* `rng`.* key='1'", message
        )


def csv(folder: Path, dtypes: Any = "int64", **options: Any) -> Any:
    path = folder / "rows.csv"
    if not path.exists():
        path.write_text("1,2\n3,4\n")
    return read_csv(path, dtypes, seed=1, **options)


def skipping(source: Any, on_error: Any) -> Any:
    return source.prepare(times(1), on_error=on_error)


OPTIONS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "dtypes": (csv, lambda folder: csv(folder, "float32")),
    "columns": (csv, lambda folder: csv(folder, columns=[1])),
    "null values": (
        lambda folder: csv(folder, [str, str]),
        lambda folder: csv(folder, [str, str], null_values=["2"]),
    ),
    "fill": (
        lambda folder: csv(folder, null_values=["2"], fill_null=-1),
        lambda folder: csv(folder, null_values=["2"], fill_null=-2),
    ),
    "true values": (
        lambda folder: csv(folder, bool, true_values=["1", "2"], false_values=["3", "4"]),
        lambda folder: csv(folder, bool, true_values=["3", "4"], false_values=["1", "2"]),
    ),
    "encoding": (csv, lambda folder: csv(folder, encoding="latin-1")),
    "delimiter": (lambda folder: csv(folder, str), lambda folder: csv(folder, str, delimiter=";")),
    "compression": (csv, lambda folder: csv(folder, compression=None)),
    "keys": (csv, lambda folder: csv(folder).with_keys()),
    "on_error of a reader": (csv, lambda folder: csv(folder, on_error="skip")),
    "on_error": (lambda folder: skipping(csv(folder), "stop"), lambda f: skipping(csv(f), "skip")),
    "on_error behind retries": (
        lambda folder: skipping(csv(folder), Retry(1)),
        lambda folder: skipping(csv(folder), Retry(1, then="skip")),
    ),
    "drop_none": (
        lambda folder: csv(folder).prepare(times(1)),
        lambda folder: csv(folder).prepare(times(1), drop_none=True),
    ),
    "seed of a stage": (
        lambda folder: csv(folder).prepare(times(1), seed=1),
        lambda folder: csv(folder).prepare(times(1), seed=2),
    ),
    "seed": (lambda folder: csv(folder).shuffle(2, seed=1), lambda f: csv(f).shuffle(2, seed=2)),
    "remainder": (
        lambda folder: csv(folder).batch(1, drop_remainder=False),
        lambda folder: csv(folder).batch(1, drop_remainder=True),
    ),
    "padding": (
        lambda folder: csv(folder).batch(2, pad=True),
        lambda folder: csv(folder).batch(2, pad=True, padding_value=7),
    ),
    "strict": (
        lambda folder: csv(folder).zip(numbers(2, seed=1)),
        lambda folder: csv(folder).zip(numbers(2, seed=1), strict=True),
    ),
    "within a branch": (
        lambda folder: numbers(2, seed=1).concat(skipping(csv(folder), "stop")),
        lambda folder: numbers(2, seed=1).concat(skipping(csv(folder), "skip")),
    ),
    "within a cache": (
        lambda folder: skipping(csv(folder), "stop").cache().prepare(times(1)),
        lambda folder: skipping(csv(folder), "skip").cache().prepare(times(1)),
    ),
    "arrays": (
        lambda folder: arrays({"x": np.zeros((4, 3))}, seed=1),
        lambda folder: arrays({"x": np.ones((4, 3))}, seed=1),
    ),
    "items": (
        lambda folder: items([{"x": {1}}], seed=1),
        lambda folder: items([{"x": {2}}], seed=1),
    ),
}


def tables(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "y=1" / "rows.parquet"
    if not path.exists():
        path.parent.mkdir()
        pq.write_table(pa.table({"a": [1, 2, 3], "b": [4, None, 6]}), path)
    return path


def parquet(**options: Any) -> Callable[[Path], Any]:
    return lambda folder: read_parquet(tables(folder), seed=1, **options)


def schema(**types: str) -> Any:
    import pyarrow as pa

    return pa.schema([(name, getattr(pa, kind)()) for name, kind in types.items()])


filled = {"b": -1}
OPTIONS |= {
    "columns of Parquet": (parquet(columns=["a"]), parquet(columns=["b"], fill_null=filled)),
    "fill of Parquet": (parquet(fill_null=filled), parquet(fill_null={"b": -2})),
    "filters": (parquet(filters=[("a", ">", 1)]), parquet(filters=[("a", "<", 2)])),
    "partitioning": (parquet(columns=["a"]), parquet(columns=["a"], partitioning="hive")),
    "batch size": (parquet(columns=["a"], batch_size=2), parquet(columns=["a"], batch_size=3)),
    "schema": (parquet(schema=schema(a="int64")), parquet(schema=schema(a="float32"))),
    "lines": (
        lambda folder: read_lines(tables(folder), seed=1, encoding=None),
        lambda folder: read_lines(tables(folder), seed=1, encoding="latin-1"),
    ),
    "errors": (
        lambda folder: read_lines(tables(folder), seed=1, errors="ignore"),
        lambda folder: read_lines(tables(folder), seed=1, errors="replace"),
    ),
    "grouped": (
        lambda folder: read_tar(tables(folder), seed=1),
        lambda folder: read_tar(tables(folder), seed=1, grouped=False),
    ),
}


class TestOptions:
    @pytest.mark.parametrize("name", OPTIONS)
    def test_a_key_does_not_stand_for_them(self, name: str, tmp_path: Path) -> None:
        old, new = OPTIONS[name]
        assert compared(old(tmp_path)) == compared(old(tmp_path))
        assert compared(old(tmp_path)) != compared(new(tmp_path))

    @pytest.mark.parametrize("name", ["dtypes", "on_error", "arrays", "within a cache"])
    @pytest.mark.parametrize("key", [None, "1"])
    def test_caches_are_refused(self, name: str, key: str | None, tmp_path: Path) -> None:
        old, new = OPTIONS[name]
        list(old(tmp_path).cache(tmp_path / "cache", key=key))
        list(old(tmp_path).cache(tmp_path / "cache", key=key))
        assert failure_of(lambda: list(new(tmp_path).cache(tmp_path / "cache", key=key)))

    @pytest.mark.parametrize("name", ["dtypes", "on_error", "within a cache"])
    def test_writing_does_not_continue(self, name: str, tmp_path: Path) -> None:
        def written(made: Callable[[Path], Any]) -> Any:
            rows = made(tmp_path).prepare(np.ndarray.tolist)
            return rows.write(to_json_lines(tmp_path / "rows"), progress=False)

        old, new = OPTIONS[name]
        written(old)
        assert written(old).resumed == 2
        assert failure_of(lambda: written(new))

    def test_limits_may_be_raised_unless_damage_is_skipped(self, tmp_path: Path) -> None:
        stopping, skipping = (
            [compared(csv(tmp_path, on_error=how, max_line_bytes=most)) for most in (99, 999)]
            for how in ("stop", "skip")
        )
        assert stopping[0] == stopping[1]
        assert skipping[0] != skipping[1]

    def test_the_size_of_cached_batches_counts(self, tmp_path: Path) -> None:
        list(numbers(9, seed=1).batch(3).cache(tmp_path, key="1"))
        assert "size" in failure_of(
            lambda: list(numbers(9, seed=1).batch(2).cache(tmp_path, key="1"))
        )


def compared(pipeline: Any) -> Any:
    """What a cache with a key compares, and a run that writes on."""
    from aioqueue.inputs import Pipeline
    from aioqueue.pipeline.state.checkpoint import fingerprint_of

    made: Any = pipeline if isinstance(pipeline, Pipeline) else Pipeline(pipeline)
    return fingerprint_of(made), options_of(made, is_cache=True), options_of(made, is_cache=False)


class TestFiles:
    def lines(self, folder: Path) -> Any:
        return read_lines([folder / "a.txt", folder / "b.txt"], seed=1)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        folder.mkdir()
        for name in "ab":
            (folder / f"{name}.txt").write_text("x\ny\n")
        return folder

    def test_when_one_was_changed_counts_for_caches_alone(
        self, folder: Path, tmp_path: Path
    ) -> None:
        state = self.lines(folder).batch(2).epochs(1).state_dict()
        for path, key in (("code", None), ("key", "1")):
            list(self.lines(folder).cache(tmp_path / path, key=key))
        self.lines(folder).write(to_json_lines(tmp_path / "rows"))
        os.utime(folder / "b.txt", ns=(1, 1))
        assert "files.source" in failure_of(
            lambda: list(self.lines(folder).cache(tmp_path / "code"))
        )
        list(self.lines(folder).cache(tmp_path / "key", key="1"))
        assert self.lines(folder).write(to_json_lines(tmp_path / "rows")).resumed == 4
        self.lines(folder).batch(2).epochs(1, resume=state)
        (folder / "b.txt").write_text("x\ny\nz\n")
        cached = self.lines(folder).cache(tmp_path / "key", key="1")
        assert "files.sizes" in failure_of(lambda: list(cached))

    def test_the_folder_may_be_moved(self, folder: Path, tmp_path: Path) -> None:
        list(self.lines(folder).cache(tmp_path / "cache"))
        shutil.move(folder, tmp_path / "moved")
        assert list(self.lines(tmp_path / "moved").cache(tmp_path / "cache")) == ["x", "y"] * 2

    def test_one_may_be_made_after_the_pipeline(self, folder: Path, tmp_path: Path) -> None:
        (folder / "b.txt").rename(folder / "c.txt")
        cached = self.lines(folder).cache(tmp_path / "cache")
        (folder / "c.txt").rename(folder / "b.txt")
        list(cached)
        list(self.lines(folder).cache(tmp_path / "cache"))

    def test_one_that_is_open_counts_by_its_file(self, folder: Path) -> None:
        def key() -> Any:
            with (folder / "a.txt").open() as opened:
                return code_of(numbers(3, seed=1).prepare(lambda x: (x, opened)[0]))

        before = key()
        assert key() == before
        os.utime(folder / "a.txt", ns=(1, 1))
        assert key() != before


class TestOneProcess:
    def test_what_a_run_changes_does_not_make_it_stale(self, tmp_path: Path) -> None:
        seen: dict[int, int] = {}

        def noted(number: int) -> int:
            seen[number] = number
            return number

        cached = numbers(5, shuffle=True).prepare(noted).cache(tmp_path)
        with cached.epochs(2) as epochs:
            epoch = next(epochs)
            first = [next(epoch), next(epoch)]
            state = epochs.state_dict()
        with cached.epochs(2, resume=state) as epochs:
            rest = list(next(epochs))
            assert first + rest == list(next(epochs))

    def test_without_a_seed_it_is_found_again(self, tmp_path: Path) -> None:
        whole = list(numbers(5, shuffle=True).prepare(times(2)).cache(tmp_path))
        assert list(numbers(5, shuffle=True).prepare(times(2)).cache(tmp_path)) == whole

    def test_writing_continues_with_a_mended_function(self, tmp_path: Path) -> None:
        def failing(number: int) -> int:
            if number == 7:
                raise ValueError
            return number

        def mended(number: int) -> int:
            return number

        sink = to_json_lines(tmp_path, rows_per_file=2)
        with pytest.raises(ExceptionGroup):
            numbers(9, seed=1).prepare(failing, workers=1).write(sink)
        assert numbers(9, seed=1).prepare(mended).write(sink).resumed in range(2, 7)

    def test_without_cloudpickle_the_extra_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from aioqueue.fingerprints import values

        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        values._reducers.cache_clear()
        try:
            with pytest.raises(ModuleNotFoundError, match=r"a cache in files needs .*parquet\]"):
                numbers(3).prepare(times(1)).cache(tmp_path)
            assert list(numbers(3).prepare(times(2)).cache()) == [0, 2, 4]
            assert list(numbers(3).prepare(times(2)).cache(tmp_path, key="1")) == [0, 2, 4]
            arrays({"x": np.zeros(3)}, seed=1).batch(2).epochs(1).state_dict()
        finally:
            values._reducers.cache_clear()


class TestRebuilding:
    """Two that rebuild one folder against each other: one gets an error, and none old examples."""

    def cached(self, factor: int, folder: Path, wait: Callable[[], object] = lambda: None) -> Any:
        def multiplied(number: int) -> int:
            wait()
            return number * factor

        return numbers(5, seed=1).prepare(multiplied, workers=1).cache(folder, on_stale="rebuild")

    def test_a_reader_gets_an_error(self, tmp_path: Path) -> None:
        one, other = self.cached(1, tmp_path), self.cached(2, tmp_path)
        with one.epochs(2) as epochs:
            assert list(next(epochs)) == [0, 1, 2, 3, 4]
            assert list(other) == [0, 2, 4, 6, 8]
            message = failure_of(lambda: list(next(epochs)))
        assert "another process has rebuilt meanwhile: code.0 prepare multiplied" in message
        assert list(other) == [0, 2, 4, 6, 8]
        assert "rebuilt meanwhile" in failure_of(lambda: list(one))
        assert list(self.cached(1, tmp_path)) == [0, 1, 2, 3, 4]  # a later run

    def test_a_run_that_waits_for_another_gets_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, continues = threading.Event(), threading.Event()

        def waiting(file: Any, *, wait: bool, locked: Any = part_folder._locked) -> bool:
            if wait:
                continues.set()  # the other one waits for the lock
            return bool(locked(file, wait=wait))

        def hold() -> None:
            begun.set()
            continues.wait()

        monkeypatch.setattr(part_folder, "_locked", waiting)
        one, other = self.cached(1, tmp_path, hold), self.cached(2, tmp_path)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(one))
        thread.start()
        begun.wait()
        message = failure_of(lambda: list(other))
        thread.join()
        assert "another process has just written it" in message
        assert found == [0, 1, 2, 3, 4]

    def test_those_of_one_program_wait_for_each_other(self, tmp_path: Path) -> None:
        list(self.cached(1, tmp_path))
        made = [self.cached(2, tmp_path) for _ in range(3)]
        found: list[list[int]] = []
        threads = [threading.Thread(target=lambda one=one: found.append(list(one))) for one in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[0, 2, 4, 6, 8]] * 3


PROGRAM = """
import json, sys
from aioqueue.inputs import numbers
from aioqueue.pipeline.fingerprint import code_of

class Made:
    def __call__(self, x): return helped(x)

def helped(x): return x + 1

def key():
    return json.dumps(code_of(numbers(3, seed=0).prepare(Made())))

if __name__ == "__main__":
    print(key())
"""


@pytest.mark.slow
def test_a_program_may_be_run_or_imported_from_anywhere(tmp_path: Path) -> None:
    def run(*arguments: str, cwd: Path) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout

    keys = set()
    for name in ("one", "other"):
        (tmp_path / name / "package").mkdir(parents=True)
        (tmp_path / name / "package" / "program.py").write_text(PROGRAM)
        for cwd, module in (
            (tmp_path / name, "package.program"),
            (tmp_path / name / "package", "program"),
        ):
            keys.add(run("-m", module, cwd=cwd))
            keys.add(run("-c", f"import {module} as m; print(m.key())", cwd=cwd))
        keys.add(run(str(tmp_path / name / "package" / "program.py"), cwd=tmp_path))
    assert len(keys) == 1


def test_tensors_of_torch_count_whole() -> None:
    torch = pytest.importorskip("torch")

    def key(tensor: Any) -> Any:
        return code_of(numbers(3, seed=0).prepare(lambda number: (number, tensor)))

    def tagged(tag: int) -> Any:
        tensor = torch.zeros(1)
        tensor.tag = tag
        return tensor

    def quantized(number: int) -> Any:
        return torch.quantize_per_tensor(torch.tensor([0.0, number]), 0.1, 0, torch.quint8)

    def nested(number: int) -> Any:
        return torch.nested.nested_tensor([torch.zeros(number)], layout=torch.jagged)

    for make in (tagged, quantized):
        assert key(make(1)) == key(make(1)) != key(make(2))
    try:
        assert key(nested(1)) != key(nested(2))
    except InvalidArgumentError as error:
        assert "key=" in str(error)
