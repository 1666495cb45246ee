"""Other ends of an epoch: failures, loops that are left, Ctrl-C, the end of the program."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import aioqueue
from aioqueue import sync
from tests.kit.worlds import ctrl_c, spin_until, waiting
from tests.torch.comparison import no_thread_is_left, ours, own_threads
from tests.torch.datasets import (
    LENGTH,
    Broken,
    Held,
    Tensors,
    refuses,
    unreadable_from_four_to_seven,
)


def streams_of(iterator: Any) -> Any:
    """What is between a loop and each worker: its tasks, its replies and its coordinator."""
    return iterator._streams._streams


class Taken:
    """What a loop has got, and what it was ended by."""

    def __init__(self, loader: Any) -> None:
        self.batches: list[list[int]] = []
        self.error: BaseException | None = None
        self.iterator = iter(loader)
        try:
            for _, labels in self.iterator:
                self.batches.append(labels.tolist())
        except Exception as error:
            self.error = error

    @property
    def failures(self) -> list[str]:
        return [str(self.failure)]

    @property
    def failure(self) -> BaseException:
        """The single one, which comes as itself."""
        assert self.error is not None
        assert not isinstance(self.error, ExceptionGroup)
        return self.error


class Labels(list[int]):
    """None."""

    def tolist(self) -> list[int]:
        return self


class BreaksOff(IterableDataset[int]):
    """Fails after three samples."""

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise KeyError("no more")


class FailsThird:
    """A sampler that is its own iterator."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> FailsThird:
        return self

    def __next__(self) -> int:
        self.given += 1
        if self.given == 3:
            raise LookupError("of the sampler")
        return self.given


class TestFailures:
    @pytest.mark.parametrize("is_persistent", [False, True])
    @pytest.mark.parametrize("workers", [1, 2, 3])
    @pytest.mark.parametrize("bad", [0, 9, LENGTH - 1])
    def test_come_in_the_place_of_their_batch(
        self, bad: int, workers: int, is_persistent: bool
    ) -> None:
        loader = ours(Broken(bad), 4, num_workers=workers, persistent_workers=is_persistent)
        taken = Taken(loader)
        assert taken.batches == [[*range(i, i + 4)] for i in range(0, bad - bad % 4, 4)]
        assert taken.failures == [f"'sample {bad}'"]
        failure = taken.failure
        assert type(failure) is KeyError
        worker = bad // 4 % workers
        assert any(f"-worker-{worker}" in note for note in failure.__notes__)
        first = bad - bad % 4
        indices = list(range(first, min(first + 4, LENGTH)))
        assert f"while making batch {bad // 4} of indices {indices}" in failure.__notes__
        shown = "".join(traceback.format_exception(failure))
        assert not re.search(r"Task\(|\(epoch|OutOfRange|During handling|direct cause", shown)
        assert [frame.name for frame in traceback.extract_tb(failure.__traceback__)] == [
            "__init__",  # of `Taken`
            "__getitem__",
        ]
        assert next(taken.iterator, None) is None
        no_thread_is_left()
        assert Taken(loader).batches == taken.batches  # another epoch has new workers

    @pytest.mark.usefixtures("few_processes")
    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("where", ["thread", "process"])
    def test_failures_in_batches_that_were_not_requested(self, where: Any, in_order: bool) -> None:
        """They were made ahead of a loop that was left: the next epoch begins as the first."""
        options = {"num_workers": 1, "persistent_workers": True, "in_order": in_order}
        loader = ours(Broken(5), 4, where=where, **options)
        for _ in range(3):
            _, numbers = next(iter(loader))
            assert numbers.tolist() == [0, 1, 2, 3]
        taken = Taken(loader)
        assert taken.batches == [[0, 1, 2, 3]]
        assert taken.failures == ["'sample 5'"]

    def test_a_failure_in_a_batch_that_is_still_made(self) -> None:
        dataset = Late(5)
        loader = ours(dataset, 4, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        replies = streams_of(iterator)[0].replies

        def release() -> None:
            spin_until(lambda: dataset.begun.is_set() and waiting(replies))
            dataset.may_continue.set()

        releasing = threading.Thread(target=release)
        releasing.start()
        assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
        releasing.join()

    @pytest.mark.usefixtures("few_processes")
    def test_of_a_batch_that_cannot_be_unpickled_are_of_that_alone(self) -> None:
        loader = ours(
            Tensors(),
            4,
            num_workers=2,
            where="process",
            persistent_workers=True,
            collate_fn=unreadable_from_four_to_seven,
        )
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator) == [0, 1, 2, 3]
            with pytest.raises(ValueError, match="no number"):
                next(iterator)
            assert [batch[0] for batch in iterator] == [*range(8, LENGTH, 4)]

    def test_of_several_workers_are_one_group(self) -> None:
        # Both workers have failed before their first batch is asked for.
        loader = ours(Broken(1, 5), 4, num_workers=2)
        iterator = iter(loader)
        spin_until(lambda: all(s.coord.should_stop() for s in streams_of(iterator)))
        with pytest.raises(ExceptionGroup, match="the DataLoader failed on batch 0: K") as caught:
            next(iterator)
        assert [str(one) for one in caught.value.exceptions] == ["'sample 1'", "'sample 5'"]

    def test_without_workers_are_what_was_raised(self) -> None:
        taken = Taken(ours(Broken(5), 4))
        assert type(taken.error) is KeyError
        assert taken.batches == [[0, 1, 2, 3]]
        assert next(taken.iterator)[1].tolist() == [8, 9, 10, 11]  # as with PyTorch

    @pytest.mark.parametrize("in_order", [True, False])
    def test_of_worker_init_fn(self, in_order: bool) -> None:
        """Also of a worker that is given no batch."""
        loader = ours([1], num_workers=2, worker_init_fn=refuses, in_order=in_order)
        with pytest.raises(Exception, match="worker 1 is not to be") as caught:
            list(loader)
        failure = caught.value
        assert failure.__notes__[0] == "while DataLoader worker 1 began its epoch"
        assert not any("preparing item" in note for note in failure.__notes__)

    @pytest.mark.parametrize(
        ("dataset", "size", "note"),
        [
            (Broken(5), None, "while making batch 5 of index 5"),
            (BreaksOff(), 2, "while making batch 1"),
            (BreaksOff(), None, "while making batch 3"),
        ],
    )
    def test_failures_name_their_batch(self, dataset: Any, size: int | None, note: str) -> None:
        taken = Taken(ours(dataset, size, num_workers=1, collate_fn=lambda one: (None, Labels())))
        assert taken.failure.__notes__[0] == note

    def test_are_a_group_in_any_case_on_request(self) -> None:
        loader = ours(Broken(5), 4, num_workers=1, raise_single=False)
        with pytest.raises(ExceptionGroup, match="failed on batch 1: KeyError: 'sample 5'"):
            list(loader)
        with pytest.raises(
            aioqueue.InvalidArgumentError, match="raise_single: got 1; expected a bool"
        ):
            ours(Broken(5), 4, raise_single=1)

    def test_of_collate_fn(self) -> None:
        def collate(samples: list[int]) -> int:
            raise StopIteration if samples == [2] else KeyError("other")

        with pytest.raises(RuntimeError, match="StopIteration"):
            list(ours([2], num_workers=1, collate_fn=collate))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_of_the_sampler_are_its_own_and_come_in_their_place(self, workers: int) -> None:
        class Sampler:
            def __iter__(self) -> Any:
                yield from (3, 1, 2)
                raise LookupError("no more order")

        taken = Taken(ours(Tensors(), 1, sampler=Sampler(), num_workers=workers))
        assert taken.batches == [[3], [1], [2]]
        assert type(taken.error) is LookupError
        no_thread_is_left()

    @pytest.mark.usefixtures("few_processes")
    def test_of_processes(self) -> None:
        taken = Taken(ours(Broken(9), 4, num_workers=2, where="process"))
        assert taken.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert taken.failures == ["'sample 9'"]
        notes = taken.failure.__notes__
        assert "while making batch 2 of indices [8, 9, 10, 11]" in notes
        assert not any("preparing item" in note for note in notes)
        assert multiprocessing.active_children() == []

    @pytest.mark.usefixtures("few_processes")
    def test_a_process_that_dies_is_one(self) -> None:
        loader = ours(Tensors(), 4, num_workers=1, where="process", prefetch_factor=1)
        iterator = iter(loader)
        next(iterator)
        process = next(iter(multiprocessing.active_children()))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(aioqueue.WorkerDiedError) as caught:
            list(iterator)
        died = caught.value
        assert str(died).startswith("the process of DataLoader worker 0 has died")
        assert str(died).endswith("its batches cannot be made again")


def test_in_a_coroutine_the_error_has_advice() -> None:
    dataset = Held(0)
    loader = ours(dataset, 4, num_workers=1)

    async def train() -> int:
        iterator = iter(loader)
        with pytest.raises(
            RuntimeError, match=r"asyncio\.to_thread.*Pipeline.*async for"
        ) as caught:
            next(iterator)
        assert "queue" not in str(caught.value).replace("aioqueue", "")
        dataset.may_continue.set()
        rest = await asyncio.to_thread(list, iterator)
        return len(rest)

    assert asyncio.run(train()) == 6


class TestTimeouts:
    def test_a_batch_that_comes_late(self) -> None:
        dataset = Held(4)
        iterator = iter(ours(dataset, 4, num_workers=1, timeout=0.01))
        dataset.begun.wait()
        batches = []
        with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0.01 seconds$"):
            while True:
                try:
                    batches.append(next(iterator)[1].tolist())
                except RuntimeError:
                    if batches:
                        raise
        assert batches == [[0, 1, 2, 3]]
        dataset.may_continue.set()
        iterator._plan.__dict__["timeout"] = 60
        assert next(iterator)[1].tolist() == [4, 5, 6, 7]  # nothing was lost
        iterator.close()

    def test_a_scope_of_the_caller(self) -> None:
        dataset = Held(0)
        iterator = iter(ours(dataset, 4, num_workers=1))
        with pytest.raises(aioqueue.DeadlineExceededError), sync.CancelScope(timeout=0.01):
            next(iterator)
        dataset.may_continue.set()
        assert next(iterator)[1].tolist() == [0, 1, 2, 3]
        iterator.close()


class TestLeaving:
    @pytest.mark.parametrize("taken", [0, 1, 3])
    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_break_ends_the_workers(self, workers: int, taken: int) -> None:
        loader = ours(Tensors(), 2, num_workers=workers)
        for number, _ in enumerate(loader):
            if number == taken:
                break
        no_thread_is_left()

    @pytest.mark.parametrize("is_generator", [False, True])
    @pytest.mark.parametrize("is_persistent", [False, True])
    def test_a_break_before_the_sampler_failed(
        self, is_generator: bool, is_persistent: bool
    ) -> None:
        """The failure is kept until its place comes; it keeps no workers, even without the garbage
        collector."""
        indices = FailsThird()
        sampler: Any = (index for index in indices) if is_generator else indices
        gc.collect()
        gc.disable()
        try:
            loader = ours(
                Tensors(), 1, sampler=sampler, num_workers=2, persistent_workers=is_persistent
            )
            for _ in loader:
                break
            assert indices.given == 3
            if is_persistent:
                del loader
            no_thread_is_left()
        finally:
            gc.enable()

    def test_an_exception_of_the_body_is_the_bodys(self) -> None:
        with pytest.raises(LookupError, match="of the body"):
            for _ in ours(Tensors(), 2, num_workers=2):
                raise LookupError("of the body")
        no_thread_is_left()

    def test_dropped_while_a_worker_is_busy(self) -> None:
        dataset = Held(0)
        iterator = iter(ours(dataset, 4, num_workers=2))
        dataset.begun.wait()
        del iterator  # does not wait
        spin_until(lambda: len(own_threads()) <= 2)  # the one that is held, and who watches it
        dataset.may_continue.set()
        no_thread_is_left()

    def test_closing_waits_for_the_workers(self) -> None:
        dataset = Held(0)
        iterator = iter(ours(dataset, 4, num_workers=2))
        dataset.begun.wait()
        closing = threading.Thread(target=iterator.close)
        closing.start()
        spin_until(lambda: streams_of(iterator)[0].coord.should_stop())
        assert closing.is_alive()
        dataset.may_continue.set()
        closing.join()
        assert next(iterator, None) is None
        iterator.close()  # as often as one likes
        serial = iter(ours(Tensors(), 4))
        serial.close()
        assert next(serial, None) is None

    def test_in_a_circle_of_garbage(self) -> None:
        circle: list[Any] = [iter(ours(Tensors(), 2, num_workers=2))]
        circle.append(circle)
        del circle
        gc.collect()
        no_thread_is_left()

    def test_persistent_workers_end_with_their_loader(self) -> None:
        loader = ours(Tensors(), 4, num_workers=2, persistent_workers=True)
        names = []
        for _ in range(3):
            assert len(list(loader)) == 6
            names.append(sorted(own_threads()))
        assert names[0] == names[1] == names[2] != []
        del loader
        no_thread_is_left()

    @pytest.mark.parametrize("left_at", [0, 2, 5])
    def test_persistent_workers_continue_after_a_break(self, left_at: int) -> None:
        loader = ours(Tensors(), 4, num_workers=2, persistent_workers=True, prefetch_factor=3)
        for _ in range(3):
            for number, (_, labels) in enumerate(loader):
                assert labels[0] == 4 * number
                if number == left_at:
                    break
        assert [labels[0] for _, labels in loader] == [0, 4, 8, 12, 16, 20]

    def test_several_at_once(self) -> None:
        loader = ours(Tensors(), 4, num_workers=2)
        pairs = [(int(a[1][0]), int(b[1][0])) for a, b in zip(loader, loader, strict=True)]
        assert pairs == [(i, i) for i in range(0, LENGTH, 4)]
        no_thread_is_left()

    @pytest.mark.usefixtures("few_processes")
    def test_processes_end_too(self) -> None:
        for _ in ours(Tensors(), 4, num_workers=2, where="process"):
            break
        spin_until(lambda: not multiprocessing.active_children())


class Late(Held):
    """Fails at its second item."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        example = super().__getitem__(index)
        if index == self.at:
            raise KeyError(f"sample {index}")
        return example


@pytest.mark.skipif(sys.platform == "win32", reason="signals are for the program there")
def test_ctrl_c_ends_the_wait_at_once() -> None:
    dataset = Held(4)
    iterator = iter(ours(dataset, 4, num_workers=1))
    replies = streams_of(iterator)[0].replies
    with (
        pytest.raises(KeyboardInterrupt),
        ctrl_c(lambda: dataset.begun.is_set() and waiting(replies)),
    ):
        list(iterator)
    assert streams_of(iterator)[0].coord.should_stop()
    dataset.may_continue.set()
    no_thread_is_left()
    assert next(iterator, None) is None


@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_program_may_end_at_any_time(where: str) -> None:
    program = f"""
import torch
from aioqueue.torch import DataLoader
from tests.torch.datasets import Tensors

if __name__ == "__main__":
    loader = DataLoader(Tensors(), 2, num_workers=2, where={where!r}, persistent_workers=True)
    iterator = iter(loader)
    print(next(iterator)[1].tolist())
"""
    root = Path(aioqueue.__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=50,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[0, 1]\n", "")


UNHEARD = """
import threading
from aioqueue.torch import DataLoader

class Failing:
    has_failed = threading.Event()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 5:
            self.has_failed.set()
            raise SystemExit("enough")
        return index

iterator = iter(DataLoader(Failing(), 1, num_workers=1, prefetch_factor=8))
print(next(iterator).tolist())
assert Failing.has_failed.wait(50)
"""


def test_unrequested_failures_are_not_raised_at_the_end() -> None:
    """Whatever it is: a `SystemExit` of a dataset is no more than the failure of a batch."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNHEARD],
        cwd=Path(aioqueue.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[0]\n", "")


FORKED = """
import os
import signal
import threading
from types import SimpleNamespace

import torch
from aioqueue.torch import DataLoader, loader_workers, worker_info

begun, may_continue = threading.Event(), threading.Event()


class Held(threading.Thread):
    def start(self):
        begun.set()
        may_continue.wait()
        super().start()


torch.set_num_threads(3)
loader_workers.threading = SimpleNamespace(Thread=Held, Lock=threading.Lock, Event=threading.Event)
iterator = iter(DataLoader(range(8), 4, num_workers=2))
begun.wait()
with worker_info._install_lock:
    child = os.fork()
    if not child:
        signal.alarm(20)
        loader_workers.threading = threading
        loader = DataLoader(range(4), 2, num_workers=2)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        found = [torch.get_num_threads()]
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert found == [3, 3], found
        os._exit(0)
may_continue.set()
assert len(list(iterator)) == 2
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_while_workers_begin_has_workers_of_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=Path(aioqueue.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.stdout == "0\n", ran.stderr


INHERITED = """
import os
from aioqueue.torch import DataLoader

iterator = iter(DataLoader(range(40), 2, num_workers=1))
next(iterator)
child = os.fork()
if not child:
    try:
        next(iterator)
    except RuntimeError as error:
        assert "was begun in the parent process" in str(error), error
        os._exit(0)
    os._exit(1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_an_iterator_in_a_fork_reports_the_fork() -> None:
    """And not, as it would wait, that an event loop is running."""
    ran = subprocess.run(
        [sys.executable, "-c", INHERITED],
        cwd=Path(aioqueue.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.stdout == "0\n", ran.stderr
