"""What is decided about worker processes, without any."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from aioqueue.items.item import Item
from aioqueue.processes.messages import Succession, how_it_ended, why_not_begun
from aioqueue.workers.executors.worker_process import Assignments, SendPace
from aioqueue.workers.flow_control import Pending


def pending(number: int, value: Any = None) -> Pending:
    return Pending(Item(number, value, 2, number + 100))


class TestHowManyAreSent:
    @pytest.mark.parametrize(
        ("seconds", "chunk"),
        [
            (1e-9, (64, 64)),
            (0.00015, (64, 64)),
            (0.0004, (25, 25)),
            (0.002, (5, 5)),
            (0.009, (1, 1)),
            (0.0199, (1, 1)),
            (0.02, (1, 0)),
            (3.0, (1, 0)),
        ],
    )
    def test_about_ten_milliseconds_of_work(self, seconds: float, chunk: tuple[int, int]) -> None:
        pace = SendPace()
        pace.note(7 * seconds, 7)
        assert pace.chunk() == chunk

    def test_one_as_long_as_nothing_is_known(self) -> None:
        assert SendPace().chunk() == (1, 0)

    def test_an_item_that_took_no_time(self) -> None:
        pace = SendPace()
        pace.note(0.0, 1)
        assert pace.chunk() == (64, 64)

    def test_a_fifth_of_what_is_known_is_the_latest(self) -> None:
        pace = SendPace()
        pace.note(0.001, 1)
        pace.note(0.006, 1)  # so 2 ms
        assert pace.chunk() == (5, 5)
        pace.note(0.006, 3)
        assert pace.chunk() == (5, 5)
        pace.note(10.0, 1)
        assert pace.chunk() == (1, 0)


class TestWhatAProcessHas:
    def test_from_when_it_is_sent_until_its_outcome_comes(self) -> None:
        books, items = Assignments(), [pending(number, f"item {number}") for number in range(3)]
        assert len(books) == 0
        chunk = [books.enter(item) for item in items]
        assert [sent[:3] for sent in chunk] == [(0, 2, 100), (1, 2, 101), (2, 2, 102)]
        assert [pickle.loads(sent[3]) for sent in chunk] == ["item 0", "item 1", "item 2"]
        assert len(books) == 3
        assert [Assignments().was_of_use, books.was_of_use] == [False, False]
        assert books.take_off(1) is items[1]
        assert books.was_of_use
        assert len(books) == 2
        assert books.lost(-1).to_do == [items[0], items[2]]

    def test_what_cannot_be_sent_it_does_not_have(self) -> None:
        books = Assignments()
        with pytest.raises(Exception, match=r"pickle|local object"):  # by the words of the version
            books.enter(pending(0, lambda: None))
        assert len(books) == 0

    def test_places_that_are_free_are_told_once(self) -> None:
        books = Assignments()
        one, other = books.release_of([(64, 10), (128, 20)]), books.release_of([(640, 5)])
        assert one is not None
        assert other is not None
        chunk = [books.enter(pending(4))]
        assert pickle.loads(books.message(chunk)) == ([], chunk)
        other()
        one()
        assert pickle.loads(books.message(chunk)) == ([640, 64, 128], chunk)
        assert pickle.loads(books.message([])) == ([], [])

    def test_no_places_need_no_release(self) -> None:
        assert Assignments().release_of([]) is None


class TestADeath:
    def test_of_nothing_in_particular(self) -> None:
        books, items = Assignments(), [pending(number) for number in range(3)]
        for item in items:
            books.enter(item)
        assert books.lost(-1) == (items, None)
        assert [item.deaths for item in items] == [0, 0, 0]
        assert not books.was_of_use
        assert len(books) == 0
        assert books.lost(1) == ([], None)

    def test_of_an_item_whose_outcome_has_come(self) -> None:
        books, items = Assignments(), [pending(number) for number in range(2)]
        for item in items:
            books.enter(item)
        books.take_off(0)
        assert books.lost(0) == (items[1:], None)
        assert items[0].deaths == 0

    def test_three_of_one_item(self) -> None:
        items = [pending(number) for number in range(3)]
        for death in (1, 2, 3):
            books = Assignments()
            for item in items:
                books.enter(item)
            loss = books.lost(1)
            assert books.was_of_use
            assert items[1].deaths == death
            if death < 3:
                assert loss == (items, None)
            else:
                assert loss == ([items[0], items[2]], items[1])


def dead(*, is_ready: bool = True, has_begun: bool = True, was_of_use: bool = False) -> Assignments:
    books = Assignments()
    books.is_ready, books.has_begun, books.was_of_use = is_ready, has_begun, was_of_use
    return books


class TestWhetherItIsReplaced:
    def test_ten_in_vain_are_enough(self) -> None:
        succession = Succession()
        for _ in range(9):
            assert succession.why_the_last("w", dead(), -11) is None
        assert succession.why_the_last("w", dead(), -9) == (
            "worker process w was killed by SIGKILL (out of memory?) before it had done anything,"
            " as did 9 before it"
        )

    def test_also_while_they_start(self) -> None:
        succession = Succession()
        whys = [succession.why_the_last("w", dead(is_ready=False), -15) for _ in range(10)]
        assert whys == [
            *[None] * 9,
            "worker process w was killed by SIGTERM while it started, as did 9 before it",
        ]

    def test_they_count_if_they_follow_each_other(self) -> None:
        succession = Succession()
        for _ in range(3):
            for _ in range(9):
                assert succession.why_the_last("w", dead(), 1) is None
            assert succession.why_the_last("w", dead(was_of_use=True), 1) is None

    def test_a_process_that_ends_while_it_starts_would_do_so_again(self) -> None:
        books = dead(is_ready=False)
        assert Succession().why_the_last("w", books, 0) == (
            "worker process w has ended with exit code 0 while it started: its error output says"
            " more"
        )
        books.has_begun = False
        why = Succession().why_the_last("w", books, 1)
        assert why == (
            f"worker process w has ended with exit code 1 while it started{why_not_begun()}"
        )

    def test_one_that_ends_later_would_perhaps_not(self) -> None:
        assert Succession().why_the_last("w", dead(), 0) is None

    @pytest.mark.parametrize("has_file", [True, False])
    def test_a_main_module_without_a_guard(
        self, has_file: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        main = ModuleType("__main__")
        if has_file:
            main.__file__ = "program.py"
        monkeypatch.setitem(sys.modules, "__main__", main)
        why = why_not_begun()
        assert why.startswith(": its error output says more")
        assert ('if __name__ == "__main__":' in why) == has_file


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("exitcode", "how"),
    [
        (0, "has ended with exit code 0"),
        (3, "has ended with exit code 3"),
        (-1, "was killed by SIGHUP"),
        (-9, "was killed by SIGKILL (out of memory?)"),
        (-11, "was killed by SIGSEGV"),
        (-999, "was killed by signal 999"),
    ],
)
def test_how_it_ended(exitcode: int, how: str) -> None:
    assert how_it_ended(exitcode) == how
