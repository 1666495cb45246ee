"""Items that fail are skipped, retried, reported, quarantined and replayed."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import DataLossError, InvalidArgumentError, OutOfRangeError, QueueClosedError, sync
from aioqueue.items.item import Entry
from aioqueue.items.quarantine import QuarantineFile
from aioqueue.items.quarantined import Quarantined
from aioqueue.sources.kinds.sequences import items, numbers
from aioqueue.sources.kinds.source import Source, read_quarantine
from aioqueue.workers.options import Retry
from aioqueue.workers.retries import FailurePolicy
from aioqueue.workers.runner import PrepareRunner, prepare
from tests.kit.functions import noise, refuse_even, refuses_thirteens
from tests.kit.preparing import Runner, drained, failures_of, in_loop, prepared
from tests.kit.worlds import World

N = 40
GOOD = [number for number in range(N) if number % 13]


@pytest.fixture(params=[in_loop, lambda function: function], ids=["task", "thread"])
def fitting(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes functions fit for tasks, or for threads."""
    made: Callable[..., Any] = request.param
    return made


def flaky(times: int) -> Callable[[int], int]:
    """A function that fails so many times for each number before it returns the number."""
    failures: dict[int, int] = {}
    lock = threading.Lock()

    def make(number: int) -> int:
        with lock:
            failures[number] = failures.get(number, 0) + 1
        if failures[number] <= times:
            raise OSError(f"not yet: {number}")
        return number

    return make


class TestSkip:
    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    async def test_the_rest_continues(
        self, world: World, fitting: Callable[..., Any], ordered: bool
    ) -> None:
        runners: list[Runner] = []
        got = await prepared(
            world,
            range(N),
            fitting(refuses_thirteens),
            runners=runners,
            on_error="skip",
            ordered=ordered,
        )
        assert (got if ordered else sorted(got)) == GOOD
        progress = runners[0].statistics()
        assert (progress.prepared, progress.skipped, progress.retried) == (len(GOOD), 4, 0)
        assert (progress.left_out, progress.in_flight) == (0, 0)
        records = sorted(runners[0].quarantine, key=lambda record: record.index)
        assert [record.item for record in records] == [0, 13, 26, 39]
        assert records[1].error == "ValueError: 13 is unlucky"
        assert records[1].attempts == 1
        assert (records[1].epoch, records[1].index) == (0, 13)
        assert 'raise ValueError(f"{number} is unlucky")' in records[1].traceback
        assert "while preparing item 13 (epoch 0, index 13)" in records[1].traceback

    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    async def test_what_the_queue_refuses(
        self, world: World, fitting: Callable[..., Any], ordered: bool
    ) -> None:
        """A record that makes an example of the wrong shape is a bad record too."""
        runners: list[Runner] = []
        got = await prepared(
            world,
            range(N),
            fitting(lambda number: np.zeros(3 if number % 13 else 4)),
            world.fifo(8, "float64", (3,)),
            runners=runners,
            on_error=Retry(5, then="skip"),
            ordered=ordered,
        )
        assert len(got) == len(GOOD)
        assert runners[0].statistics().retried == 0  # it would be refused again
        (first, *_) = runners[0].quarantine
        assert "InvalidArgumentError: component 0: got an array float64[4]" in first.error

    def test_what_a_generator_makes_is_refused_once(self) -> None:
        """The generator is then left, which is no second failure."""

        def make(number: int) -> Iterator[Any]:
            yield number
            yield "not a number"
            yield number

        queue = sync.FIFOQueue(8, "int64", ())
        runner = prepare([5], make, into=queue, workers=1)
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, runner)
        (failure,) = failures_of(caught.value)
        assert failure.startswith("InvalidArgumentError")
        assert failure.count("while preparing item 5") == 1
        assert runner.statistics().examples == 1

    def test_nothing_follows_what_the_queue_has_refused(self) -> None:
        def make(number: int) -> Iterator[Any]:
            yield number
            yield "not a number"
            yield number

        queue = sync.FIFOQueue(8, "int64", ())
        runner = prepare([5], make, into=queue, on_error="skip")
        assert drained(queue, runner) == [5]
        assert (runner.statistics().skipped, len(runner.quarantine)) == (1, 1)

    def test_an_item_enters_whole_or_not_at_all(self) -> None:
        def make(number: int) -> Iterator[int]:
            yield number
            yield refuses_thirteens(number)

        queue = sync.FIFOQueue(8)
        got = drained(queue, prepare(range(N), make, into=queue, on_error="skip", ordered=True))
        assert got == [number for number in GOOD for _ in range(2)]

    @pytest.mark.parametrize(
        ("limit", "reason"),
        [
            (0, "1 item failed, and max_failures allows 0"),
            (2, "3 items failed, and max_failures allows 2"),
            (0.05, "4 of 40 items failed, and max_failures allows 0.05 of all"),
        ],
    )
    def test_too_many(self, limit: float, reason: str) -> None:
        queue = sync.FIFOQueue(N)
        runner = prepare(
            range(N),
            refuses_thirteens,
            into=queue,
            workers=1,
            on_error="skip",
            max_failures=limit,
        )
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, runner)
        (failure,) = failures_of(caught.value)
        assert reason in failure
        assert "is unlucky" in failure or limit == 0.05  # then it is that of the whole

    def test_not_too_many(self) -> None:
        queue = sync.FIFOQueue(N)
        for limit in (4, 0.2):
            runner = prepare(
                range(N), refuses_thirteens, into=queue, on_error="skip", max_failures=limit
            )
            drained(queue, runner)
            queue = sync.FIFOQueue(N)

    def test_a_share_is_judged_before_the_end(self) -> None:
        """As soon as there are enough failures to tell."""
        queue = sync.FIFOQueue(N)
        runner = prepare(
            range(10**9), flaky(1), into=queue, workers=1, on_error="skip", max_failures=0.9
        )
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, runner)
        assert (
            "11 of 11 items failed, and max_failures allows 0.9" in (failures_of(caught.value)[0])
        )


class TestRetry:
    async def test_until_it_works(self, world: World, fitting: Callable[..., Any]) -> None:
        runners: list[Runner] = []
        got = await prepared(
            world,
            range(N),
            fitting(flaky(2)),
            runners=runners,
            on_error=Retry(2),
            ordered=True,
        )
        assert got == list(range(N))
        progress = runners[0].statistics()
        assert (progress.prepared, progress.retried, progress.skipped) == (N, 2 * N, 0)

    async def test_in_vain(self, world: World, fitting: Callable[..., Any]) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(world, range(N), fitting(flaky(3)), on_error=Retry(2), workers=1)
        (failure,) = failures_of(caught.value)
        assert "OSError('not yet: 0') | while preparing item 0" in failure
        assert "it has failed 3 times" in failure

    @pytest.mark.parametrize(
        "options",
        [
            {"on_error": Retry(2, then="skip")},
            {"on_error": Retry(2), "max_failures": N},
        ],
        ids=["then skip", "max_failures"],
    )
    def test_in_vain_and_skipped(self, options: dict[str, Any]) -> None:
        queue = sync.FIFOQueue(N)
        runner = prepare(range(N), flaky(3), into=queue, **options)
        assert drained(queue, runner) == []
        assert {record.attempts for record in runner.quarantine} == {3}
        assert runner.statistics().skipped == N

    def test_only_of_failures_that_are_worth_it(self) -> None:
        queue = sync.FIFOQueue(N)
        on_error = Retry(2, on=(TimeoutError, ConnectionError), then="skip")
        runner = prepare(range(N), flaky(1), into=queue, on_error=on_error)
        drained(queue, runner)
        assert runner.statistics().retried == 0
        assert {record.attempts for record in runner.quarantine} == {1}

    @pytest.mark.parametrize("kind", [OutOfRangeError, QueueClosedError, StopIteration])
    async def test_of_what_would_end_others(
        self, world: World, fitting: Callable[..., Any], kind: type[Exception]
    ) -> None:
        """The exception that the function has raised decides, not that which tells of it."""
        failed: list[int] = []

        def make(number: int) -> int:
            if number not in failed:
                failed.append(number)
                raise kind("of another queue")
            return number

        function = make if kind is StopIteration else fitting(make)  # no coroutine can raise it
        got = await prepared(world, range(3), function, on_error=Retry(1, on=kind), ordered=True)
        assert got == [0, 1, 2]

    def test_backoff_is_asked_with_the_number_of_failures(self) -> None:
        asked: list[int] = []

        def backoff(failures: int) -> float:
            asked.append(failures)
            return 0.0001 * failures

        queue = sync.FIFOQueue(N)
        drained(queue, prepare([1], flaky(3), into=queue, on_error=Retry(3, backoff)))
        assert asked == [1, 2, 3]

    @pytest.mark.slow(but="thread")
    @pytest.mark.parametrize("where", ["thread", "task", "process"])
    def test_a_backoff_gets_the_failure_if_it_wants_it(self, where: Any) -> None:
        asked: list[tuple[int, str]] = []

        def listen(failures: int, *, error: Exception) -> float:
            asked.append((failures, str(error)))
            return 0.0

        queue = sync.FIFOQueue(N)
        function: Any = in_loop(refuse_even) if where == "task" else refuse_even
        on_error = Retry(2, listen, then="skip")
        drained(queue, prepare([1, 2], function, into=queue, where=where, on_error=on_error))
        assert asked == [(1, "2 is even"), (2, "2 is even")]

    def test_a_wrong_backoff_is_reported(self) -> None:
        queue = sync.FIFOQueue(N)
        on_error = Retry(3, lambda failures: -1.0)
        with pytest.raises(ExceptionGroup) as caught:
            drained(queue, prepare([1], flaky(3), into=queue, on_error=on_error))
        assert "backoff: got -1.0; expected a number of seconds >= 0" in str(
            failures_of(caught.value)
        )

    def test_every_attempt_has_the_same_rng(self) -> None:
        drawn: list[float] = []

        def make(number: int, rng: np.random.Generator) -> int:
            drawn.append(float(rng.random()))
            raise OSError

        queue = sync.FIFOQueue(N)
        drained(queue, prepare([1], make, into=queue, on_error=Retry(3, then="skip")))
        assert len(drawn) == 4
        assert len(set(drawn)) == 1

    @pytest.mark.parametrize(
        ("message", "options"),
        [
            ("times: got 0; expected an int >= 1", {"times": 0}),
            ("times: got True", {"times": True}),
            ("backoff: got -1; expected a number", {"times": 1, "backoff": -1}),
            ("backoff: got nan; expected a number", {"times": 1, "backoff": float("nan")}),
            ("on: got 'OSError'; expected an exception", {"times": 1, "on": "OSError"}),
            ("on: got ()", {"times": 1, "on": ()}),
            ("then: got 'go on'; expected 'stop' or 'skip'", {"times": 1, "then": "go on"}),
        ],
    )
    def test_wrong_arguments(self, message: str, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            Retry(**options)
        assert message in str(caught.value)

    def test_a_policy_is_a_value(self) -> None:
        assert Retry(3, 1.0) == Retry(3, 1.0)
        assert hash(Retry(3)) == hash(Retry(3))


class TestPolicy:
    """`FailurePolicy`, by itself."""

    def test_a_share_needs_some_failures_to_judge_by(self) -> None:
        policy = FailurePolicy("skip", 0.1, has_quarantine=False)
        assert not policy.too_many(10, 10)
        assert policy.too_many(10, 10, at_end=True)
        assert policy.too_many(11, 109)
        assert not policy.too_many(11, 110)
        assert not policy.too_many(1, 10, at_end=True)


def ring() -> list[Any]:
    """A list that has no end."""
    item: list[Any] = []
    item.append(item)
    return item


ITEMS: dict[str, Any] = {
    "a path": "images/1.jpg",
    "a number": 3,
    "a list": ["a", 1, 0.5, None, True, {"b": []}],
    "a tuple": ("a", 1),
    "bytes": b"\x00\xff",
    "not a number": float("nan"),
    "an array": np.arange(3),
    "a dict with other keys": {1: 2},
    "a subclass": np.float64(0.5),
    "a list within itself": ring(),
    "an int of many digits": 1 << 20_000,
}
AS_JSON = ("a path", "a number", "a list")


def refuse(item: Any) -> Any:
    raise ValueError("all are bad")


class Hostile:
    """Its pickle runs code: a failure of the test, here."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("something was unpickled that the run has not written",)


APPENDING = """
import sys
from aioqueue.items.quarantined import Quarantined
from aioqueue.items.quarantine import QuarantineFile
file = QuarantineFile(sys.argv[1])
for number in range(100):
    file.add(Quarantined("y" * 5_000, 0, number, "", "", 1, 0))
assert [record.index for record in file.records()] == list(range(100))
print(len(file.records()))
"""


class TestFile:
    def run(self, source: Any, path: Path, **options: Any) -> PrepareRunner:
        """Write all items of a source to a quarantine."""

        def make(item: Any, rng: np.random.Generator) -> Any:
            raise ValueError("all are bad")

        queue = sync.FIFOQueue(8)
        runner = prepare(
            source, make, into=queue, on_error="skip", quarantine=path, workers=1, **options
        )
        assert drained(queue, runner) == []
        return runner

    @pytest.mark.parametrize("name", ITEMS)
    def test_whatever_the_item_is(self, tmp_path: Path, name: str) -> None:
        item = ITEMS[name]
        path = tmp_path / "bad.jsonl"
        runner = self.run([item], path)
        fields = json.loads(path.read_text("utf-8"))
        assert ("item" in fields) == (name in AS_JSON)
        assert ("pickle" in fields) == (name not in AS_JSON)
        (again,) = read_quarantine(path, trusted=True)
        assert type(again) is type(item)
        assert pickle.dumps(again) == pickle.dumps(item)
        assert pickle.dumps(runner.quarantine[0].item) == pickle.dumps(item)

    def test_pickles_are_opened_only_if_trusted(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        self.run(["a", b"b"], path)
        with pytest.raises(InvalidArgumentError) as caught:
            read_quarantine(path)
        assert str(caught.value).startswith(f"trusted: got False, but {path}:2 holds a pickled")

    def test_items_that_can_only_be_described(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        runner = self.run(items(["a", threading.Lock()], 1), path)
        assert "<unlocked _thread.lock" in runner.quarantine[1].item
        with pytest.raises(InvalidArgumentError) as caught:
            read_quarantine(path)
        assert f"{path}:2: the item could not be written, only described" in str(caught.value)
        assert "by epoch 0 and index 1" in str(caught.value)

    def test_a_replay_is_what_it_was(self, tmp_path: Path) -> None:
        """The items come with their epochs, indices and seed, so their `rng` is the same."""
        path = tmp_path / "bad.jsonl"
        source: Any = items(["a", "b", "c"], 2, shuffle=True, seed=5)
        self.run(source, path)
        again = read_quarantine(path)
        assert isinstance(again, Source)
        assert list(again.entries()) == list(source.entries())
        assert again.seed == 5
        assert len(again) == 6
        assert isinstance(again.records[0], Quarantined)
        assert again.records[0].error == "ValueError: all are bad"
        queue, another = sync.FIFOQueue(8), sync.FIFOQueue(8)
        replayed = drained(queue, prepare(again, noise, into=queue, ordered=True))
        assert replayed == drained(another, prepare(source, noise, into=another, ordered=True))

    def test_records_are_added(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        self.run([1], path, seed=3)
        runner = self.run([2], path, seed=3)
        assert [record.item for record in runner.quarantine] == [2]
        assert list(read_quarantine(path).entries()) == [Entry(1, 0, 0), Entry(2, 0, 0)]
        self.run([3], path, seed=4)
        with pytest.raises(InvalidArgumentError, match="2 runs with different seeds"):
            read_quarantine(path)

    def test_an_item_that_cannot_even_be_described(self, tmp_path: Path) -> None:
        class Shy:
            def __repr__(self) -> str:
                raise ValueError

        runner = self.run([Shy()], tmp_path / "bad.jsonl")
        assert runner.quarantine[0].item == "<Shy whose repr raises ValueError>"

    def test_the_error_of_code_that_does_not_parse(self, tmp_path: Path) -> None:
        """Python shows the code first, and then says what is wrong."""
        queue = sync.FIFOQueue(N)
        runner = prepare(["1 +"], eval, into=queue, on_error="skip")
        drained(queue, runner)
        assert runner.quarantine[0].error == "SyntaxError: invalid syntax"

    def test_two_runs_share_a_file(self, tmp_path: Path) -> None:
        """Each sees its own records, and a replay those of all."""
        path = tmp_path / "bad.jsonl"
        queues = [sync.FIFOQueue(8) for _ in range(2)]
        runners = [
            prepare(source, refuse, into=queue, on_error="skip", quarantine=path, workers=1, seed=1)
            for source, queue in zip((range(30), [b"x", b"y"] * 10), queues, strict=True)
        ]
        with sync.Coordinator() as coord:
            for runner in runners:
                coord.start(runner)
            for queue in queues:
                assert list(queue) == []
        assert [record.item for record in runners[0].quarantine] == list(range(30))
        assert [record.item for record in runners[1].quarantine] == [b"x", b"y"] * 10
        assert len(read_quarantine(path, trusted=True)) == 50

    def test_nothing_is_unpickled_that_the_run_has_not_written(self, tmp_path: Path) -> None:
        """Neither what others append, nor lines of this run that were changed or moved."""
        path = tmp_path / "bad.jsonl"
        runner = self.run([b"one", b"two"], path)
        own = path.read_bytes()
        hostile = base64.b64encode(pickle.dumps(Hostile())).decode("ascii")
        for line in own.splitlines(keepends=True):
            fields = json.loads(line)
            fields["pickle"] = hostile
            line = json.dumps(fields).encode("ascii") + b"\n"
            for content in (own + line, own + line * 3 + own, line + own, own + b"\n[]\n{"):
                path.write_bytes(content)
                assert [record.item for record in runner.quarantine] == [b"one", b"two"]
            path.write_bytes(own.replace(own.splitlines(keepends=True)[1], line))
            with pytest.raises(DataLossError, match="1 of 2 records of this run are gone"):
                _ = runner.quarantine

    def test_lost_records_are_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        runner = self.run([1, 2, 3], path)
        lines = path.read_bytes().splitlines(keepends=True)
        for left in (lines[:2], lines[1:], [lines[1], lines[0], lines[2]], [b"".join(lines)[:-1]]):
            path.write_bytes(b"".join(left))
            with pytest.raises(DataLossError, match=r"of 3 records of this run are gone") as caught:
                _ = runner.quarantine
            assert caught.value.path == str(path)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            _ = runner.quarantine

    def test_a_torn_line_of_another_run(self, tmp_path: Path) -> None:
        """It remains the only lost line, and it is reported."""
        path = tmp_path / "bad.jsonl"
        self.run(["a"], path, seed=1)
        whole = path.read_bytes()
        path.write_bytes(whole + whole[:20])
        with pytest.raises(DataLossError, match=f"{path}:2: no record") as caught:
            read_quarantine(path)
        assert caught.value.offset == len(whole)
        runner = self.run(["b"], path, seed=1)
        assert [record.item for record in runner.quarantine] == ["b"]
        with pytest.raises(DataLossError, match=f"{path}:2: no record"):
            read_quarantine(path)
        path.write_bytes(path.read_bytes().replace(whole[:20] + b"\n", b"\n"))
        assert list(read_quarantine(path)) == ["a", "b"]

    @pytest.mark.slow
    def test_lines_of_many_writers_are_not_mixed(self, tmp_path: Path) -> None:
        """Of threads, and of other processes, all of which write at the same time."""
        path = tmp_path / "bad.jsonl"
        command = [sys.executable, "-c", APPENDING, str(path)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        files = [QuarantineFile(path) for _ in range(2)]

        def add(number: int) -> None:
            for _ in range(50):
                files[number % 2].add(Quarantined("x" * 5_000, 0, number, "", "", 1, 0))

        threads = [threading.Thread(target=add, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in processes:
            assert process.communicate(timeout=50)[0].split() == [b"100"]
        assert [len(file.records()) for file in files] == [100, 100]
        assert {record.index for record in files[0].records()} == {0, 2}
        again = read_quarantine(path)
        assert len(again) == 400
        assert set(again) == {"x" * 5_000, "y" * 5_000}

    def test_nothing_of_what_is_written_stays_in_memory(self, tmp_path: Path) -> None:
        file = QuarantineFile(tmp_path / "bad.jsonl")
        record = Quarantined("x" * 100, 0, 0, "", "", 1, 0)
        tracemalloc.start()
        try:
            for _ in range(10):
                file.add(record)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(2_000):
                file.add(record)
            assert tracemalloc.get_traced_memory()[0] - before < 2_000
        finally:
            tracemalloc.stop()

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        queue = sync.FIFOQueue(N)
        runner = prepare(numbers(3, 1), str, into=queue, on_error="skip", quarantine=str(path))
        assert len(drained(queue, runner)) == 3
        assert list(read_quarantine(path)) == []
        assert runner.quarantine == []

    @pytest.mark.parametrize(
        "line", ["{", "[]", "{}", '{"item": 1}', "\xff", '{"pickle": "?"}', '{"pickle": "gAV9"}']
    )
    def test_a_damaged_file(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "bad.jsonl"
        self.run([1], path)
        size = path.stat().st_size
        with path.open("a", encoding="latin-1") as file:
            file.write(line + "\n")
        with pytest.raises(DataLossError) as caught:
            read_quarantine(path, trusted=True)
        assert (caught.value.path, caught.value.offset) == (str(path), size)
        assert f"{path}:2: no record of a quarantine" in str(caught.value)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_quarantine(tmp_path / "none.jsonl")


class Odd:
    """An example that cannot be asked how large it is."""

    @property
    def nbytes(self) -> int:
        raise OutOfRangeError("this is somebody else's end")


@pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
@pytest.mark.parametrize("what", ["backoff", "size"])
async def test_what_is_called_beside_the_function_ends_nothing(
    world: World, fitting: Callable[..., Any], what: str, ordered: bool
) -> None:
    """The end of something else that is raised there is a failure, as from the function."""

    def backoff(failures: int) -> float:
        raise OutOfRangeError("this is somebody else's end")

    options: dict[str, Any] = {"on_error": Retry(2, backoff)}
    make: Callable[[int], Any] = refuses_thirteens
    if what == "size":
        options = {"limit_bytes": 100}
        make = lambda number: number if number % 13 else Odd()  # noqa: E731
    with pytest.raises(ExceptionGroup) as caught:
        await prepared(world, range(1, N), fitting(make), ordered=ordered, **options)
    for failure in failures_of(caught.value):
        assert "somebody else's end" in failure
