"""At most ``max_per_key`` items of one key are in preparation at a time, on every executor."""

from __future__ import annotations

import functools
import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import anyio.lowlevel
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.items.item import Item
from aioqueue.workers.flow_control import Pending
from aioqueue.workers.key_limits import Inbox, KeyLimit
from aioqueue.workers.options import Retry
from aioqueue.workers.runner import prepare
from tests.kit import functions
from tests.kit.pipelines import coordinated, joined, rest
from tests.kit.preparing import Runner, drained, failures_of, fitting, prepared, stand_in
from tests.kit.worlds import PATIENCE, ThreadWorld, World, spin_until

KEYS = "aaabab"


def first(item: tuple[str, int]) -> str:
    return item[0]


def pending(key: str, number: int) -> Pending:
    return Pending(Item(number, (key, number), 0, number))


class TestPlaces:
    """`KeyLimit` and `Inbox`, without workers."""

    def entered(self, limit: KeyLimit, keys: str) -> tuple[list[Pending], list[bool]]:
        pendings = [pending(key, number) for number, key in enumerate(keys)]
        for one in pendings:
            limit.note_key(one)
        return pendings, [limit.admit(one) for one in pendings]

    def test_are_given_to_so_many_of_each_key(self) -> None:
        _, admitted = self.entered(KeyLimit(first, 2), "aababb")
        assert admitted == [True, True, True, False, True, False]

    def test_go_to_those_put_aside_in_their_order(self) -> None:
        limit = KeyLimit(first, 1)
        pendings, _ = self.entered(limit, "abaaa")
        assert limit.release_place(pendings[1]) is None
        assert limit.release_place(pendings[0]) is pendings[2]
        late = pending("a", 9)
        limit.note_key(late)
        assert not limit.admit(late), "others of its key have come before"
        assert limit.admit(pendings[2]), "it has its place already"
        assert limit.release_place(pendings[2]) is pendings[3]
        assert limit.release_place(pendings[3]) is pendings[4]
        assert limit.release_place(pendings[4]) is late
        assert limit.release_place(late) is None

    def test_are_given_back_once(self) -> None:
        limit = KeyLimit(first, 1)
        (one, other), _ = self.entered(limit, "aa")
        assert limit.release_place(one) is other
        assert limit.release_place(one) is None
        assert not limit.admit(one)
        assert limit.release_place(other) is one

    def test_nothing_is_kept_of_a_key_without_items(self) -> None:
        class Key(str):
            """A key whose references can be counted."""

        limit = KeyLimit(lambda value: Key("a"), 2)
        pendings = [pending("a", number) for number in range(5)]
        keys = []
        for one in pendings:
            limit.note_key(one)
            limit.admit(one)
            keys.append(weakref.ref(cast(Key, one.key)))
        left = [one for one in pendings if one.has_place]
        assert len(left) == 2
        while left:
            next_owner = limit.release_place(left.pop())
            if next_owner is not None:
                left.append(next_owner)
        del pendings, one
        gc.collect()
        assert [key() for key in keys] == [None] * 5

    def test_a_key_is_asked_for_once(self) -> None:
        asked: list[Any] = []

        def key_of(value: Any) -> None:
            asked.append(value)

        limit, one = KeyLimit(key_of, 1), pending("a", 0)
        noted = [one.has_key]
        limit.note_key(one)
        limit.note_key(one)
        noted.append(one.has_key)
        assert noted == [False, True], "the key is None"
        assert asked == [("a", 0)]

    def test_a_key_that_cannot_be_hashed_is_not_noted(self) -> None:
        key_of: Any = list
        limit, one = KeyLimit(key_of, 1), pending("a", 0)
        with pytest.raises(TypeError, match="unhashable type: 'list'"):
            limit.note_key(one)
        assert not one.has_key

    def test_an_item_that_gets_a_place_precedes_ready_ones(self) -> None:
        limit = KeyLimit(first, 1)
        inbox = Inbox(limit)
        one, other, third = (pending("a", number) for number in range(3))
        for each in (one, other, third):
            limit.note_key(each)
        assert inbox.admit(one)
        assert not inbox.admit(other)
        inbox.put(third)
        assert inbox.release_place(one)
        assert inbox.take(9) == [other, third]
        assert not inbox.release_place(one)


@pytest.fixture(params=["task", "thread", "process", "interpreter"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "process":
        request.getfixturevalue("nothing_is_left")
    if request.param == "interpreter":
        stand_in(monkeypatch)
    return str(request.param)


def face(world: World, queue: sync.FIFOQueue) -> Any:
    """The face of a queue that fits the world."""
    return queue if isinstance(world, ThreadWorld) else queue.aio


class Began:
    """Which items have begun, as `functions.waits_for_go` tells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def counts(self) -> Counter[str]:
        return Counter(path.name.split("-")[1] for path in self.path.glob("begun-*"))

    def go(self) -> None:
        (self.path / "go").touch()


class TestEverywhere:
    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("ordered", [False, True], ids=["as they come", "ordered"])
    async def test_others_go_first(
        self, world: World, where: Any, ordered: bool, tmp_path: Path
    ) -> None:
        """Though all that came before are of one key, and there are workers for them."""
        # One of the others is first, so that a size is known: else nothing comes in that nobody
        # could work on if it had its place.
        source = [("b", 0), *[("a", number) for number in range(9)], ("b", 1), ("b", 2)]
        queue, began = sync.FIFOQueue(50), Began(tmp_path)
        function = functools.partial(functions.waits_for_go, str(tmp_path))
        runner: Any = prepare(
            source,
            fitting(function, where),
            into=face(world, queue),
            where=where,
            workers=4,
            ordered=ordered,
            concurrency_key=first,
            max_per_key=2,
        )
        async with coordinated(world) as coord:
            coord.start(runner)
            await world.until(lambda: began.counts()["b"] == 3)
            await world.until(lambda: began.counts()["a"] == 2)
            if not ordered:
                await world.until(lambda: queue.size() == 3)
            assert began.counts()["a"] == 2
            began.go()
            got = await rest(face(world, queue))
        assert (got if ordered else sorted(got)) == (source if ordered else sorted(source))
        assert runner.statistics().prepared == 12

    @pytest.mark.slow(every=4)
    @pytest.mark.parametrize("function", [functions.alone, functions.alone_at_last])
    def test_never_more_than_that(
        self, where: Any, function: Callable[..., int], tmp_path: Path
    ) -> None:
        """Each that finds another one of its key fails."""
        source = random.Random(3).sample(range(200), 200)
        queue = sync.FIFOQueue(8)
        runner = prepare(
            source,
            fitting(functools.partial(function, str(tmp_path)), where),
            into=queue,
            where=where,
            workers=4,
            ordered=True,
            max_in_flight=23,
            concurrency_key=functions.remainder,
            max_per_key=1,
            on_error=Retry(1, on=OSError, backoff=lambda failures: random.random() / 500)
            if function is functions.alone_at_last
            else "stop",
        )
        assert drained(queue, runner) == source
        assert runner.statistics().retried == (200 if function is functions.alone_at_last else 0)

    @pytest.mark.slow(every=6)
    async def test_a_stop_while_some_are_put_aside(
        self, world: World, where: Any, tmp_path: Path
    ) -> None:
        queue, began = sync.FIFOQueue(50), Began(tmp_path)
        function = functools.partial(functions.waits_for_go, str(tmp_path))
        source = [("b", 0), *[("a", number) for number in range(9)], ("b", 1)]
        runner: Any = prepare(
            source,
            fitting(function, where),
            into=face(world, queue),
            where=where,
            workers=3,
            concurrency_key=first,
            max_per_key=1,
        )
        async with coordinated(world) as coord:
            coord.start(runner)
            await world.until(lambda: began.counts()["b"] == 2)
            await world.until(lambda: began.counts()["a"] == 1)
            coord.request_stop()
            began.go()  # who cannot be interrupted may end
            await joined(coord)
        assert repr(runner).endswith("ended>")
        assert began.counts()["a"] == 1

    @pytest.mark.slow(every=6)
    async def test_skipped_items_give_their_places_back(self, world: World, where: Any) -> None:
        runners: list[Runner] = []
        got = await prepared(
            world,
            range(1, 40),
            fitting(functions.refuses_thirteens, where),
            runners=runners,
            where=where,
            workers=3,
            on_error="skip",
            concurrency_key=lambda number: number % 13,
            max_per_key=1,
        )
        assert sorted(got) == [number for number in range(1, 40) if number % 13]
        progress = runners[0].statistics()
        assert (progress.skipped, progress.prepared, progress.left_out) == (3, 36, 0)

    def test_what_waits_for_room_in_the_queue_needs_no_place(
        self, where: Any, tmp_path: Path
    ) -> None:
        """It is prepared: so another one of its key may be."""
        queue, began = sync.FIFOQueue(1), Began(tmp_path)
        began.go()
        runner: Any = prepare(
            [("a", number) for number in range(3)],
            fitting(functools.partial(functions.waits_for_go, str(tmp_path)), where),
            into=queue,
            where=where,
            workers=2,
            concurrency_key=first,
            max_per_key=1,
        )
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: began.counts()["a"] == 3)  # of which one fits in there
            assert sorted(queue) == [("a", 0), ("a", 1), ("a", 2)]


class TestKeysThatFail:
    """They are the failure of their item, and the policy decides its outcome."""

    @pytest.mark.slow(every=13)
    @pytest.mark.parametrize("key_of", [list, lambda item: 1 // 0], ids=["unhashable", "raises"])
    async def test_stop(self, world: World, where: Any, key_of: Callable[[Any], Any]) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await prepared(
                world,
                ["one"],
                fitting(str.upper, where),
                where=where,
                workers=2,
                concurrency_key=key_of,
                max_per_key=1,
            )
        (failure,) = failures_of(caught.value)
        assert failure.startswith(("TypeError(", "ZeroDivisionError("))
        assert "| while getting its key for concurrency_key" in failure
        assert "while preparing item 'one' (epoch 0, index 0)" in failure

    @pytest.mark.slow(every=7)
    async def test_skip(self, world: World, where: Any) -> None:
        runners: list[Runner] = []
        got = await prepared(
            world,
            range(10),
            fitting(functions.double, where),
            runners=runners,
            where=where,
            on_error="skip",
            ordered=True,
            concurrency_key=lambda number: [] if number % 3 == 0 else "key",
            max_per_key=1,
        )
        assert got == [2 * number for number in range(10) if number % 3]
        assert sorted(record.item for record in runners[0].quarantine) == [0, 3, 6, 9]
        assert "while getting its key" in runners[0].quarantine[0].traceback

    @pytest.mark.slow(every=8)
    async def test_retry(self, world: World, where: Any) -> None:
        asked: Counter[int] = Counter()

        def key_of(number: int) -> int:
            asked[number] += 1
            if asked[number] < 3:
                raise OSError(number)
            return 0

        got = await prepared(
            world,
            range(5),
            fitting(functions.double, where),
            where=where,
            ordered=True,
            on_error=Retry(2),
            concurrency_key=key_of,
            max_per_key=1,
        )
        assert got == [0, 2, 4, 6, 8]
        assert set(asked.values()) == {3}


class TestOnThreads:
    def test_a_retry_gives_its_place_back(self) -> None:
        """Another item of the key is prepared while the first one waits for its time."""
        failed: list[int] = []

        def make(number: int) -> int:
            if number == 0:
                failed.append(number)
                raise OSError
            return number

        queue = sync.FIFOQueue(9)
        with sync.Coordinator() as coord:
            coord.start(
                prepare(
                    range(3),
                    make,
                    into=queue,
                    workers=1,
                    on_error=Retry(1, backoff=3600),
                    concurrency_key=lambda number: None,
                    max_per_key=1,
                )
            )
            assert queue.dequeue_many(2, timeout=PATIENCE) == [1, 2]
            assert failed == [0]

    def test_the_window_bounds_what_is_put_aside(self) -> None:
        taken: list[int] = []
        go = threading.Event()

        def source() -> Iterator[int]:
            for number in range(40):
                taken.append(number)
                yield number

        def make(number: int) -> int:
            assert go.wait(PATIENCE)
            return number

        queue = sync.FIFOQueue(40)
        with sync.Coordinator() as coord:
            runner = prepare(
                source(),
                make,
                into=queue,
                max_in_flight=7,
                concurrency_key=lambda number: 0,
                max_per_key=1,
            )
            coord.start(runner)
            spin_until(lambda: len(taken) == 7)
            assert runner.statistics().in_flight == 7
            go.set()
            assert sorted(queue) == list(range(40))

    def test_a_generator_keeps_its_place_until_its_end(self) -> None:
        """Its examples are enqueued one by one, while it still runs."""
        inside: list[int] = []
        most: list[int] = []

        def make(number: int) -> Iterator[int]:
            inside.append(number)
            most.append(len(inside))
            for _ in range(5):
                yield number
            inside.remove(number)

        queue = sync.FIFOQueue(1)
        runner = prepare(
            range(6), make, into=queue, workers=3, concurrency_key=lambda number: 0, max_per_key=1
        )
        assert Counter(drained(queue, runner)) == dict.fromkeys(range(6), 5)
        assert set(most) == {1}

    def test_it_need_not_end_for_its_examples_to_come(self) -> None:
        def make(number: int) -> Iterator[int]:
            while True:
                yield number

        queue = sync.FIFOQueue(1)
        runner = prepare(range(6), make, into=queue, workers=3, concurrency_key=abs, max_per_key=1)
        with sync.Coordinator() as coord:
            coord.start(runner)
            spin_until(lambda: {queue.dequeue() for _ in range(20)} == {0, 1, 2})

    async def test_a_source_of_coroutines(self, world: World) -> None:
        async def source() -> AsyncIterator[int]:
            for number in range(20):
                await anyio.lowlevel.checkpoint()
                yield number

        got = await prepared(
            world, source(), abs, concurrency_key=functions.remainder, max_per_key=1
        )
        assert sorted(got) == list(range(20))

    @pytest.mark.slow(every=7)
    async def test_a_source_that_fails(self, world: World, where: Any) -> None:
        def source() -> Iterator[int]:
            yield from range(9)
            raise OSError("the disk is gone")

        with pytest.raises(ExceptionGroup) as caught:
            await prepared(
                world,
                source(),
                fitting(functions.double, where),
                where=where,
                concurrency_key=functions.remainder,
                max_per_key=1,
            )
        (failure,) = failures_of(caught.value)
        assert failure.startswith("OSError('the disk is gone') | in the source of a prepare")

    async def test_async_generators_keep_their_places(self, world: World) -> None:
        inside: list[int] = []
        most: list[int] = []

        async def make(number: int) -> AsyncIterator[int]:
            inside.append(number)
            most.append(len(inside))
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                yield number
            inside.remove(number)

        queue = world.fifo(1)
        got = await prepared(
            world, range(5), make, queue, workers=3, concurrency_key=lambda number: 0, max_per_key=2
        )
        assert Counter(got) == dict.fromkeys(range(5), 3)
        assert max(most) == 2


@pytest.mark.usefixtures("nothing_is_left")
def test_a_process_that_dies_gives_the_place_back() -> None:
    queue = sync.FIFOQueue(8)
    runner = prepare(
        range(34, 44),
        functions.kills_itself,
        into=queue,
        where="process",
        workers=2,
        on_error="skip",
        concurrency_key=lambda number: "all",
        max_per_key=1,
    )
    assert sorted(drained(queue, runner)) == [n for n in range(34, 44) if n != 37]
    assert runner.statistics().workers_died == 3


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("max_per_key: given without concurrency_key", {"max_per_key": 3}),
        ("concurrency_key: given without max_per_key", {"concurrency_key": abs}),
        (
            "concurrency_key: got 'host'; expected a plain function",
            {"concurrency_key": "host", "max_per_key": 3},
        ),
        ("max_per_key: got 0; expected an int >= 1", {"concurrency_key": abs, "max_per_key": 0}),
        (
            "max_per_key: got True; expected an int >= 1",
            {"concurrency_key": abs, "max_per_key": True},
        ),
    ],
)
def test_wrong_arguments(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        prepare([], abs, into=sync.FIFOQueue(3), **options)
    assert message in str(caught.value)


def test_a_coroutine_function_gives_no_keys() -> None:
    async def coroutine(number: int) -> int:
        return number

    source: list[int] = []
    key_of: Any = coroutine
    with pytest.raises(
        InvalidArgumentError, match=r"concurrency_key: got .*expected a plain function"
    ):
        prepare(source, abs, into=sync.FIFOQueue(3), concurrency_key=key_of, max_per_key=1)


@pytest.mark.parametrize("where", ["task", "thread"])
@pytest.mark.parametrize(
    "options", [{}, {"concurrency_key": abs, "max_per_key": 1}], ids=["", "by key"]
)
async def test_a_refusal_of_the_queue_counts_the_attempts(
    world: World, where: Any, options: dict[str, Any]
) -> None:
    """After a failure that was retried."""
    failed: list[int] = []
    runners: list[Runner] = []

    def make(number: int) -> Any:
        if number == 3 and not failed:
            failed.append(number)
            raise OSError(number)
        return "text" if number == 3 else number

    got = await prepared(
        world,
        range(5),
        fitting(make, where),
        world.fifo(8, "int64"),
        runners,
        where=where,
        on_error=Retry(1, then="skip"),
        workers=1,
        **options,
    )
    assert sorted(got) == [0, 1, 2, 4]
    (record,) = runners[0].quarantine
    assert (record.item, record.attempts) == (3, 2)
    progress = runners[0].statistics()
    assert (progress.retried, progress.skipped, progress.left_out) == (1, 1, 0)


@pytest.mark.parametrize("where", ["task", "thread"])
async def test_a_retry_in_vain_is_counted(world: World, where: Any) -> None:
    runners: list[Runner] = []
    got = await prepared(
        world,
        range(1, 15),
        fitting(functions.refuses_thirteens, where),
        runners=runners,
        where=where,
        on_error=Retry(2, then="skip"),
        concurrency_key=lambda number: "all",
        max_per_key=1,
    )
    assert sorted(got) == [number for number in range(1, 15) if number != 13]
    (record,) = runners[0].quarantine
    assert (record.item, record.attempts) == (13, 3)
    progress = runners[0].statistics()
    assert (progress.retried, progress.skipped, progress.left_out) == (2, 1, 0)
