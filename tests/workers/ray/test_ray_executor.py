"""`where="ray"` makes what threads make, whatever the functions, stages and policies."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioqueue
from aioqueue import InvalidArgumentError, inputs, sync
from aioqueue.inputs import items, numbers, prepare
from tests.kit.clusters import PATIENCE
from tests.kit.exact import plain_form
from tests.kit.trees import MAKERS, stacked
from tests.ray.marks import MARKS

pytestmark = [*MARKS, pytest.mark.usefixtures("cluster")]


def noisy(number: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return number + rng.random(100)


def large(number: int, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], int]:
    return rng.integers(0, 255, (200, 1000), np.uint8), number


def several(number: int, rng: np.random.Generator) -> Iterator[Any]:
    for _ in range(number % 4):
        yield float(rng.random())


def prepared(function: Any, where: Any, count: int = 200, **options: Any) -> list[Any]:
    """Return the examples of a pipeline, in order."""
    queue = sync.FIFOQueue(64)
    with sync.Coordinator() as coord:
        source = numbers(count, epochs=1, seed=3)
        runner = prepare(
            source, function, into=queue, where=where, workers=2, ordered=True, **options
        )
        coord.start(runner)
        return list(iter_all(queue))
    raise AssertionError("unreachable")


def iter_all(queue: sync.FIFOQueue) -> Iterator[Any]:
    while True:
        try:
            yield queue.dequeue()
        except aioqueue.OutOfRangeError:
            return


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize("function", [noisy, large, several])
def test_makes_the_same_bytes_as_threads(function: Any) -> None:
    count = 30 if function is large else 200
    ours, theirs = (prepared(function, where, count) for where in ("ray", "thread"))
    assert len(ours) == len(theirs) > 0
    assert same(ours, theirs)


def test_fills_queues_of_typed_components() -> None:
    queue = sync.FIFOQueue(64, ["uint8", "int64"], [(200, 1000), ()])
    with sync.Coordinator() as coord:
        source = numbers(50, epochs=1, seed=3)
        coord.start(prepare(source, large, into=queue, where="ray", workers=2, ordered=True))
        images, labels = queue.dequeue_many(50)
    assert labels.tolist() == list(range(50))
    assert same(list(images), [image for image, _ in prepared(large, "thread", 50)])


@pytest.mark.parametrize("maker", MAKERS)
def test_examples_in_containers(maker: str) -> None:
    found = list(numbers(8).prepare(MAKERS[maker], where="ray", workers=1).batch(4))
    right = [stacked([MAKERS[maker](item) for item in range(at, at + 4)]) for at in (0, 4)]
    assert list(map(plain_form, found)) == list(map(plain_form, right))


def test_queues_of_objects_get_mapped_arrays() -> None:
    """Large arrays are mapped from the object store, and are read-only."""
    arrays = [image for image, _ in prepared(large, "ray", 4)]
    assert not any(array.flags.writeable for array in arrays)


def test_without_an_order_each_item_arrives_once() -> None:
    queue = sync.FIFOQueue(64)
    with sync.Coordinator() as coord:
        source = numbers(500, epochs=1)
        coord.start(prepare(source, abs, into=queue, where="ray", workers=3))
        assert sorted(iter_all(queue)) == list(range(500))


def test_a_pipeline_is_the_same_wherever_it_is_prepared() -> None:
    def batches(where: Any) -> list[Any]:
        pipeline = (
            numbers(100, shuffle=True, seed=5)
            .prepare(noisy, where=where, workers=2)
            .shuffle(20)
            .batch(8)
        )
        return [batch for epoch in pipeline.epochs(2) for batch in epoch]

    assert same(batches("ray"), batches("thread"))


async def test_a_pipeline_in_a_coroutine() -> None:
    pipeline = numbers(50).prepare(noisy, where="ray", workers=2).batch(10)
    assert [len(batch) async for batch in pipeline] == [10] * 5


test_a_pipeline_in_a_coroutine = pytest.mark.asyncio(test_a_pipeline_in_a_coroutine)


def test_a_pipeline_resumes() -> None:
    """The position does not depend on where items are prepared."""
    pipeline = numbers(100, shuffle=True, seed=5).prepare(noisy, where="ray", workers=2).batch(8)
    whole = list(pipeline)
    epochs = pipeline.epochs(1)
    batches = iter(next(iter(epochs)))
    first = [next(batches) for _ in range(5)]
    state = epochs.state_dict()
    epochs.close()
    rest = [batch for epoch in pipeline.epochs(1, resume=state) for batch in epoch]
    assert same(first + rest, whole)


class ShippedOnce:
    """Notes in a file whenever it is pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        with self.path.open("a") as file:
            file.write("x")
        return ShippedOnce, (self.path,)

    def __call__(self, number: int) -> int:
        return number


def test_functions_are_shipped_once(tmp_path: Path) -> None:
    function = ShippedOnce(tmp_path / "pickled")
    assert prepared(function, "ray") == list(range(200))
    assert function.path.read_text() == "x"


class Odd(Exception):  # noqa: N818
    """A failure of this module."""


def fails(number: int) -> int:
    if number % 10 == 7:
        raise Odd(number)
    return number


def fails_once(number: int) -> int:
    """Return the first failure. Two actors work, so there may be two."""
    return fails(number) if number == 7 else number


def test_a_failure_has_the_traceback_of_the_actor() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        prepared(fails_once, "ray")
    (failure,) = caught.value.exceptions
    assert isinstance(failure, Odd)
    assert failure.args == (7,)
    assert "raise Odd(number)" in str(failure.__cause__)
    assert "in a Ray actor (pid" in str(failure.__cause__)
    assert any("item 7" in note for note in failure.__notes__)


def test_failures_are_skipped_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "skipped"
    wanted = [number for number in range(200) if number % 10 != 7]
    assert prepared(fails, "ray", on_error="skip", quarantine=path) == wanted
    assert sorted(inputs.read_quarantine(path)) == list(range(7, 200, 10))


class FailsOnce:
    """Fails at the first try of each item, in any actor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> int:
        try:
            (self.folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return number
        raise Odd(number)


def test_failures_are_tried_again(tmp_path: Path) -> None:
    function = FailsOnce(tmp_path)
    assert prepared(function, "ray", 50, on_error=inputs.Retry(1)) == list(range(50))


def test_keys_are_limited() -> None:
    options = {"concurrency_key": abs, "max_per_key": 1}
    assert prepared(abs, "ray", 50, **options) == list(range(50))


class Deadly:
    """Kills its actor at one item, the first so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder = folder
        self.times = times

    def __call__(self, number: int) -> int:
        if number == 13:
            tries = len(list(self.folder.iterdir()))
            if tries < self.times:
                (self.folder / str(tries)).touch()
                os._exit(1)
        return number


def test_an_item_that_kills_now_and_then_is_prepared_again(tmp_path: Path) -> None:
    assert prepared(Deadly(tmp_path, 2), "ray") == list(range(200))


def test_an_item_that_always_kills_is_given_up(tmp_path: Path) -> None:
    wanted = [number for number in range(200) if number != 13]
    assert prepared(Deadly(tmp_path, 99), "ray", on_error="skip") == wanted
    # Three times for sure; once more, if it was not alone at first.
    assert 3 <= len(list(tmp_path.iterdir())) <= 4


def test_an_item_that_always_kills_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        prepared(Deadly(tmp_path, 99), "ray")
    (failure,) = caught.value.exceptions
    assert isinstance(failure, aioqueue.WorkerDiedError)
    assert "Ray actors have died of one item" in str(failure)
    assert any("item 13" in note for note in failure.__notes__)


def unpicklable(number: int) -> Any:
    return threading.Lock() if number == 5 else number


def test_a_result_that_cannot_be_sent_fails_alone() -> None:
    wanted = [number for number in range(50) if number != 5]
    assert prepared(unpicklable, "ray", 50, on_error="skip") == wanted


class Refused:
    """Cannot be unpickled in an actor."""

    def __reduce__(self) -> Any:
        return pickle.loads, (b"nonsense",)

    def __call__(self, number: int) -> int:
        return number


def test_a_function_that_cannot_be_imported_there() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        prepared(Refused(), "ray")
    (failure,) = caught.value.exceptions
    assert isinstance(failure, InvalidArgumentError)
    assert "cannot import" in str(failure)


def test_a_function_that_cannot_be_pickled() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidArgumentError, match="cannot be pickled"):
        prepare(numbers(1), lambda item: lock, into=sync.FIFOQueue(1), where="ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "thread", "ray": {}}, "ray: got {} with where='thread'"),
        ({"where": "ray", "ray": {"max_restarts": 3}}, "cannot be given: max_restarts"),
        ({"where": "ray", "ray": 3}, "ray: got 3; expected a mapping"),
    ],
)
def test_wrong_options(options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        prepare(numbers(1), abs, into=sync.FIFOQueue(1), **options)


def slow_once(number: int) -> int:
    if number == 7:
        time.sleep(3600)
    return number


def test_items_that_take_too_long_are_cut_short() -> None:
    wanted = [number for number in range(20) if number != 7]
    assert prepared(slow_once, "ray", 20, item_timeout=5, on_error="skip") == wanted


def test_a_stuck_actor_is_named_with_its_item_and_its_line() -> None:
    queue = sync.FIFOQueue(4)
    coord = sync.Coordinator()
    coord.start(prepare(items([7]), slow_once, into=queue, where="ray", workers=1))
    try:
        while "time.sleep(3600)" not in str(explanation := coord.explain()):
            pass
        assert "Ray actor (pid" in str(explanation)
        assert "item 7 (epoch 0, index 0)" in str(explanation)
    finally:
        coord.request_stop()
        coord.join()


def test_a_monitor_sees_what_actors_do() -> None:
    queue = sync.FIFOQueue(64)
    with sync.Coordinator() as coord, coord.monitor() as monitor:
        coord.start(prepare(numbers(200, epochs=1), spins, into=queue, where="ray", workers=2))
        assert sorted(iter_all(queue)) == list(range(200))
        (stage,) = monitor.snapshot().stages
    assert stage.where == "actor"
    assert stage.delivered == stage.service.count == 200
    assert stage.service.seconds >= 200 * SPIN
    assert stage.cpu > 0


SPIN = 0.001


def spins(number: int) -> int:
    began = time.perf_counter()
    while time.perf_counter() - began < SPIN:
        pass
    return number


def endless(number: int) -> None:
    time.sleep(3600)


def test_a_stop_is_prompt() -> None:
    """It waits neither for functions nor for actors without a place in the cluster."""
    queue = sync.FIFOQueue(4)
    coord = sync.Coordinator(stop_grace_period=PATIENCE)
    runner = prepare(numbers(10), endless, into=queue, where="ray", workers=6)
    coord.start(runner)
    with pytest.raises(aioqueue.DeadlineExceededError):
        queue.dequeue(timeout=1)
    coord.request_stop()
    coord.join()  # else it raises


def test_actors_end_with_the_job(cluster: Any) -> None:
    before = cluster.available_resources().get("CPU", 0)
    prepared(abs, "ray", 10)
    deadline = time.monotonic() + PATIENCE
    while cluster.available_resources().get("CPU", 0) < before:
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
