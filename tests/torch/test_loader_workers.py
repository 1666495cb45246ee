"""What a worker can rely on: its number, its seeds, its copy of the dataset."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
from collections import OrderedDict, UserList
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    get_worker_info,
)

import aioqueue
from aioqueue.torch import WorkerGenerators
from aioqueue.torch.dataset_copies import copy_for_thread
from tests.torch.comparison import assert_same, epoch_of, no_thread_is_left, ours, seeded, theirs
from tests.torch.datasets import (
    Draws,
    IndexedByTensor,
    OwnIterator,
    Sentences,
    Split,
    Tensors,
    padded,
    shared_or_not,
)


class Asks(Dataset[Any]):
    """Notes what `get_worker_info` says, by the name that was imported before all else."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.seen.append((get_worker_info(), threading.current_thread(), torch.get_num_threads()))
        return index


class TestWorkerInfo:
    def test_worker_info_in_every_thread(self) -> None:
        seen: list[Any] = []
        dataset = Asks(seen)
        generator = seeded()
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=seeded()))
        loader = ours(dataset, num_workers=2, generator=generator)
        for _ in loader:
            assert get_worker_info() is None
            assert torch.utils.data.get_worker_info() is None
        assert {info.id for info, _, _ in seen} == {0, 1}
        for info, thread, threads in seen:
            assert thread is not threading.current_thread()
            assert info.num_workers == 2
            assert info.seed == base_seed + info.id
            assert info.worker_method == "thread"
            assert info.dataset.seen is seen
            assert info.dataset is not dataset
            assert isinstance(info.rng, WorkerGenerators)
            assert threads == 1

    def test_none_without_workers(self) -> None:
        seen: list[Any] = []
        list(ours(Asks(seen)))
        assert {info for info, _, _ in seen} == {None}

    def test_other_threads_compute_as_before(self) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            list(ours(list(range(8)), num_workers=3))
            found: list[int] = []
            thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert [*found, torch.get_num_threads()] == [2, 2]
        finally:
            torch.set_num_threads(before)

    @pytest.mark.parametrize("workers", [1, 3])
    def test_initialised_once_by_its_number(self, workers: int) -> None:
        """Also those that get no batch."""
        reported: list[tuple[int, str]] = []

        def init(worker: int) -> None:
            reported.append((worker, threading.current_thread().name))

        loader = ours(
            list(range(2)),
            num_workers=workers,
            worker_init_fn=init,
            persistent_workers=True,
        )
        assert [epoch_of(loader) for _ in range(3)] == [[torch.tensor([0]), torch.tensor([1])]] * 3
        assert loader._iterator is not None
        loader._iterator.close()
        assert sorted(number for number, _ in reported) == list(range(workers))
        assert len({thread for _, thread in reported}) == workers


class Modes(Dataset[Any]):
    """Return the worker info in the thread that makes an item."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


class TestModes:
    """Workers compute in the modes of the iterating thread, as forks do."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
    def test_of_gradients_and_inference(self, mode: Any) -> None:
        with mode():
            expected = [list(Modes()[0])] * 6
            found = list(ours(Modes(), None, num_workers=2, collate_fn=list))
        assert found == expected
        assert torch.is_grad_enabled()
        assert list(ours(Modes(), None, num_workers=2, collate_fn=list)) == [[True, False]] * 6


class TestSeeds:
    @pytest.mark.usefixtures("few_processes")
    def test_its_own_generators_give_the_same_whatever_it_is(self) -> None:
        """On threads and in processes, for the same generator; and other ones in each epoch."""

        def of(where: str) -> list[Any]:
            loader = ours(Draws(own=True), 4, num_workers=2, generator=seeded(), where=where)
            return [epoch_of(loader), epoch_of(loader)]

        first, second = of("thread")
        assert not torch.equal(first[0][3], second[0][3])
        assert_same(of("process"), [first, second])

    @pytest.mark.usefixtures("few_processes")
    def test_the_global_ones_of_a_process_are_seeded_as_pytorchs(self) -> None:
        def of(make: Any, **options: Any) -> list[Any]:
            loader = make(Draws(own=False), 4, num_workers=2, generator=seeded(), **options)
            return epoch_of(loader)

        assert_same(of(ours, where="process"), of(theirs))

    def test_threads_leave_the_global_ones_alone(self) -> None:
        torch.manual_seed(1)
        random.seed(1)
        list(ours(Draws(own=True), 4, num_workers=2, generator=seeded()))
        after = torch.get_rng_state(), random.getstate()
        torch.manual_seed(1)
        random.seed(1)
        assert torch.equal(after[0], torch.get_rng_state())
        assert after[1] == random.getstate()


def seeds_with_pytorch(worker: int) -> None:
    torch.manual_seed(42 + worker)


def seeds_by_the_recipe(worker: int) -> None:
    """Of PyTorch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def draws(worker: int) -> None:
    np.random.rand()


def seeds_and_fails(worker: int) -> None:
    torch.manual_seed(42)
    raise RuntimeError("of init_fn")


class TestInitialisation:
    """`worker_init_fn` on threads leaves the program's generators as they were."""

    @pytest.mark.parametrize(
        ("init", "whose"),
        [
            (seeds_with_pytorch, "of torch"),
            (seeds_by_the_recipe, "of random and numpy.random"),
            (draws, "of numpy.random"),
        ],
    )
    def test_its_seeds_are_undone_with_a_warning(
        self, init: Callable[[int], None], whose: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def epochs(init: Callable[[int], None] | None) -> list[Any]:
            torch.manual_seed(1)
            random.seed(1)
            np.random.seed(1)
            found = []
            loader = ours(range(8), 8, shuffle=True, num_workers=2, worker_init_fn=init)
            for _ in range(3):
                numbers = random.random(), float(np.random.rand()), torch.rand(1)
                found.append((epoch_of(loader), *numbers))
            return found

        undisturbed = epochs(None)
        assert not caplog.records
        assert_same(epochs(init), undisturbed)
        (record,) = caplog.records  # of 3 epochs with 2 workers each
        assert record.name == "aioqueue"
        assert record.levelname == "WARNING"
        for part in (f"generators {whose}:", "get_worker_info().rng", "where='process'"):
            assert part in record.getMessage()

    def test_no_warning_without_seeds(self, caplog: pytest.LogCaptureFixture) -> None:
        def asks(worker: int) -> None:
            assert get_worker_info().rng.random_generator.random() >= 0

        for _ in range(2):
            epoch_of(ours(range(8), 2, True, num_workers=3, worker_init_fn=asks))
        assert not caplog.records

    def test_what_fails_is_undone_too(self) -> None:
        before = torch.get_rng_state()
        loader = ours(range(8), num_workers=1, worker_init_fn=seeds_and_fails, generator=seeded())
        for _ in range(2):
            with pytest.raises(RuntimeError):
                epoch_of(loader)
        assert torch.equal(torch.get_rng_state(), before)

    def test_it_may_go_through_another_loader(self) -> None:
        def goes_through(worker: int) -> None:
            epoch_of(ours(range(4), num_workers=2, worker_init_fn=seeds_with_pytorch))

        before = torch.get_rng_state()
        loader = ours(range(8), num_workers=2, worker_init_fn=goes_through, generator=seeded())
        assert len(epoch_of(loader)) == 8
        assert torch.equal(torch.get_rng_state(), before)


class Opens(Dataset[Any]):
    """Opens a file at its first item, and keeps it open."""

    def __init__(self, opened: list[int]) -> None:
        self.opened = opened
        self.handle: int | None = None
        self.table = list(range(12))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[int, bool]:
        if self.handle is None:
            self.handle = threading.get_ident()
            self.opened.append(id(self.table))
        return index, self.handle == threading.get_ident()


class OpensToo:
    """The same, of no base class, as PyTorch takes it; with slots, and one that passes on."""

    __slots__ = ("handle", "opened", "table")

    def __init__(self, opened: list[int]) -> None:
        self.opened = opened
        self.handle: int | None = None
        self.table = list(range(12))

    __len__ = Opens.__len__
    __getitem__ = Opens.__getitem__


class Forwards:
    """Delegates to another dataset."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WorkerStreams(Forwards, IterableDataset[Any]):
    """The same for an iterable dataset."""

    def __iter__(self) -> Any:
        return iter(self.inner)


class Named(NamedTuple):
    """A member of a dataset that has others in it."""

    table: list[str]
    inner: Any


class Column(Dataset[Any]):
    """One part of each item."""

    def __init__(self, held: Any, part: Any) -> None:
        self.held = held
        self.part = part

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.held[index][self.part]


class Digs(Dataset[Any]):
    """Has its dataset somewhere in what it holds."""

    def __init__(self, held: Any, dig: Callable[[Any], Any]) -> None:
        self.held = held
        self.dig = dig

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.dig(self.held)[index]


class Owns:
    """Has items and an end of its own, which would come twice for a copy."""

    def __init__(self, handles: list[int]) -> None:
        self.handles = handles

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.handles.append(id(self))
        return index

    def __del__(self) -> None:
        self.handles.append(0)


class Shuffles(IterableDataset[Any]):
    """Holds what is large, and what is written to, within other objects."""

    def __init__(self) -> None:
        self.numbers = torch.arange(12)
        self.inner = OwnIterator()

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        self.inner.start = info.id
        for one in self.inner:
            yield one, self.numbers.data_ptr()


class TestMemory:
    """PyTorch's function makes batches in shared memory, where a worker of its own calls it."""

    @pytest.mark.usefixtures("few_processes")
    @pytest.mark.parametrize("where", ["thread", "process"])
    def test_batches_are_not_made_in_shared_memory(self, where: Any) -> None:
        loader = ours(Tensors(), 4, num_workers=2, where=where, collate_fn=shared_or_not)
        batches = list(loader)
        assert batches == [([False] * 3, number % 2) for number in range(len(batches))]

    def test_workers_of_pytorchs_own_share_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        list(ours(Tensors(), 4, num_workers=1))
        info = torch.utils.data._utils.worker.WorkerInfo(id=3, num_workers=4, seed=1, dataset=None)
        monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)
        shared, number = shared_or_not([(torch.ones(2), 1)] * 2)
        assert number == 3
        assert shared[0]

    def test_a_function_of_the_users_for_tensors_stays(self) -> None:
        code = "\n".join(
            (
                "import torch",
                "from torch.utils.data import get_worker_info",
                "from torch.utils.data._utils.collate import default_collate_fn_map",
                "def mine(batch, *, collate_fn_map=None):",
                "    return len(batch), get_worker_info().id",
                "default_collate_fn_map[torch.Tensor] = mine",
                "from aioqueue.torch import DataLoader",
                "print(list(DataLoader(torch.ones(3, 2), 2, num_workers=2)))",
            )
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "[(2, 0), (1, 1)]", done.stderr


class TestDatasets:
    @pytest.mark.parametrize("wrap", ["itself", "subset", "concatenated", "twice"])
    def test_each_thread_opens_its_own_and_shares_what_is_large(self, wrap: str) -> None:
        opened: list[int] = []
        dataset = Opens(opened)
        wrapped: Any = {
            "itself": dataset,
            "subset": Subset(dataset, list(range(12))),
            "concatenated": ConcatDataset([dataset, Subset(dataset, list(range(3)))]),
            "twice": Subset(Subset(dataset, list(range(12))), list(range(12))),
        }[wrap]
        is_own = [own for _, own in ours(wrapped, None, num_workers=3)]
        assert all(is_own)
        assert opened == [id(dataset.table)] * 3
        assert dataset.handle is None

    @pytest.mark.parametrize("kind", [Opens, OpensToo])
    @pytest.mark.parametrize(
        "hold",
        [
            lambda one: one,
            lambda one: Subset(one, range(12)),
            lambda one: Digs(StackDataset(x=one, y=range(12)), lambda held: Column(held, "x")),
            lambda one: Digs(StackDataset(one, range(12)), lambda held: Column(held, 0)),
            lambda one: Digs([None, one], lambda held: held[1]),
            lambda one: Digs([["a"], [(one,)]], lambda held: held[1][0][0]),
            lambda one: Digs({"all": OrderedDict(x=one)}, lambda held: held["all"]["x"]),
            lambda one: Digs(Named(["a"], one), lambda held: held.inner),
            Forwards,
        ],
        ids=range(9),
    )
    def test_each_thread_has_its_own_wherever_it_is_held(self, hold: Any, kind: Any) -> None:
        opened: list[int] = []
        dataset = kind(opened)
        is_own = [own for _, own in ours(hold(dataset), None, num_workers=3)]
        assert all(is_own)
        assert opened == [id(dataset.table)] * 3
        assert dataset.handle is None

    def test_what_is_data_is_shared(self) -> None:
        names = [f"{number}.jpg" for number in range(2000)]
        held = {
            "names": names,
            "many": [OpensToo([]) for _ in range(1001)],
            "array": np.zeros(3),
            "tensor": torch.zeros(3),
            "words": ["a", ["b"], {"c": 1}],
            "shared": (ctypes.c_int * 3)(),
            "net": torch.nn.Sequential(torch.nn.Linear(1, 1)),
            "user's": UserList(names),
            "file": OpensToo([]),
        }
        held["file"].table = open(os.devnull)  # noqa: SIM115
        dataset = Digs(held, lambda held: range(12))
        copied = copy_for_thread(dataset, is_iterable=False)
        assert copied is not dataset
        for name, value in held.items():
            is_shared = name != "file"  # the file of it is, though
            assert (copied.held[name] is value) == is_shared, name
        assert copied.held["file"].table is held["file"].table
        held["file"].table.close()

    def test_many_of_pytorchs_own_are_found(self) -> None:
        dataset = Digs([None] * 2000 + [Opens([])], lambda held: held[-1])
        copied = copy_for_thread(dataset, is_iterable=False)
        assert copied.held[-1] is not dataset.held[-1]

    def test_what_owns_something_ends_once(self) -> None:
        handles: list[int] = []
        owner = Owns(handles)
        assert len(list(ours(Digs(owner, lambda held: held), None, num_workers=2))) == 12
        assert handles == [id(owner)] * 12

    def test_what_cannot_be_copied_is_shared_unless_it_is_a_dataset(self) -> None:
        class Refuses(OpensToo):
            def __copy__(self) -> Any:
                raise RuntimeError("there is one of me")

        class RefusesToo(Opens):
            __copy__ = Refuses.__copy__

        held = Refuses([])
        assert copy_for_thread(Digs(held, len), is_iterable=False).held is held
        for dataset in (held, Digs(RefusesToo([]), len)):
            with pytest.raises(TypeError, match=r"^dataset: .* \(RuntimeError: there is one of me"):
                copy_for_thread(dataset, is_iterable=False)

    def test_an_iterable_wrapper_is_copied_too(self) -> None:
        dataset = WorkerStreams(WorkerStreams([3, 4]))
        assert list(ours(dataset, None, num_workers=1)) == [3, 4]
        copied = copy_for_thread(dataset, is_iterable=True)
        assert copied.inner is not dataset.inner
        assert copied.inner.inner is not dataset.inner.inner

    def test_an_iterable_one_is_copied_but_for_its_tensors(self) -> None:
        dataset = Shuffles()
        found = list(ours(dataset, None, num_workers=2))
        assert {pointer for _, pointer in found} == {dataset.numbers.data_ptr()}
        draws = OwnIterator().draws
        expected = [draws.randrange(1000) for _ in range(4)]
        for worker in range(2):
            assert [int(one[1]) for one, _ in found[worker::2]][:4] == expected

    def test_one_that_cannot_be_copied_is_refused(self) -> None:
        class Locked(IterableDataset[Any]):
            def __init__(self) -> None:
                self.lock = threading.Lock()

            def __iter__(self) -> Any:
                return iter(())

        with pytest.raises(TypeError, match=r"^dataset: got a Locked that cannot be copied for"):
            iter(ours(Locked(), num_workers=1))


class TestProcesses:
    @pytest.mark.usefixtures("few_processes")
    def test_give_the_same_batches(self) -> None:
        for kind, options in (
            (Tensors, {"batch_size": 4, "shuffle": True, "persistent_workers": True}),
            (Sentences, {"batch_size": 5, "collate_fn": padded}),
            (Split, {"batch_size": 2}),
        ):
            loaders = [
                make(kind(), num_workers=2, generator=seeded(), **options, **more)
                for make, more in ((ours, {"where": "process"}), (theirs, {}))
            ]
            for _ in range(2):
                mine, others = map(epoch_of, loaders)
                assert_same(mine, others)
        first = next(iter(ours(Tensors(), 4, num_workers=1, where="process")))[0]
        first += 1  # it is the caller's own, and writable

    def test_a_definition_at_a_prompt_is_refused(self) -> None:
        program = (
            "from aioqueue import InvalidArgumentError\n"
            "from aioqueue.torch import DataLoader\n"
            "class Mine(list): pass\n"
            "try: iter(DataLoader(Mine([1]), num_workers=1, where='process'))\n"
            "except InvalidArgumentError as error: print(error)\n"
        )
        command = [sys.executable, "-W", "error", "-c", program]
        root = Path(aioqueue.__file__).parents[1]
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=50)
        assert "'Mine' is defined in a cell of a notebook or at a prompt" in ran.stdout, ran.stderr

    def test_what_cannot_be_sent_is_refused(self) -> None:
        loader = ours(list(range(3)), num_workers=1, where="process", collate_fn=lambda it: it)
        with pytest.raises(aioqueue.InvalidArgumentError, match=r"cannot be pickled.*or where="):
            iter(loader)


def test_no_thread_was_left() -> None:
    no_thread_is_left()


@pytest.mark.usefixtures("few_processes")
@pytest.mark.parametrize("where", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_memory_that_is_shared_stays_shared(where: Any) -> None:
    """What is written into it reaches workers that live on."""
    dataset = IndexedByTensor()
    loader = ours(dataset, 4, num_workers=1, persistent_workers=True, where=where)
    found = []
    for epoch in range(3):
        dataset.epoch.fill_(epoch)
        found += [batch.tolist() for batch in loader]
    assert found == [[100 * epoch + index for index in range(4)] for epoch in range(3)]


IN_A_FORK = """
import os, signal, traceback, warnings
warnings.simplefilter("ignore")
from aioqueue.torch import DataLoader

for workers in (0, 2):
    loader = DataLoader(list(range(20)), 2, num_workers=workers, persistent_workers=bool(workers))
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if not child:
        signal.alarm(20)
        status = 1
        try:
            for call in (iterator.__next__, iterator.close, loader.state_dict):
                try:
                    print(call, "gave", call())
                except RuntimeError as error:
                    assert "fork" in str(error), error
            # Another epoch can be begun there.
            if not workers:
                assert sum(len(batch) for batch in loader) == 20
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.state_dict()["epoch"]["batches"] == 1
    assert sum(len(batch) for batch in iterator) == 18
    iterator.close()
print("all")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_an_epoch_belongs_to_the_process_that_began_it() -> None:
    program = [sys.executable, "-c", IN_A_FORK]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("all\n", "")
