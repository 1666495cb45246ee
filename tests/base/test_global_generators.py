"""Draws from the program's generators on threads give a warning: all of them, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.random import standard_normal as under_another_name

from aioqueue import inputs
from aioqueue.base import global_generators
from aioqueue.base.global_generators import DrawsFinder
from aioqueue.sync import Coordinator, FIFOQueue

try:
    import torch
except ModuleNotFoundError:
    torch = None

OWN = np.random  # as an attribute that a function keeps


class Keeps:
    def __init__(self) -> None:
        self.generator = np.random
        self.own = np.random.RandomState(5)

    def draws(self) -> Any:
        return self.generator.choice(9)

    def draws_its_own(self) -> Any:
        return self.own.choice(9)


def in_a_generator_expression() -> Any:
    return list(np.random.randint(9) for _ in range(2))  # noqa: C400


def over_several_lines() -> Any:
    source = np.random
    return source.normal(
        0.0,
        1.0,
    )


def deep_within() -> Any:
    def one(_: int) -> float:
        return random.gauss(0, 1)

    return max(map(one, range(3)))


def seeds_if_asked(seed: int | None) -> Any:
    return np.random.seed(seed) if seed is not None else 0.5


AMONG_MANY_NAMES: dict[str, Any] = {"np": np}
"""So many that the instruction which names the seed has an `EXTENDED_ARG` before it."""
exec(
    compile(
        f"""
def seeds(seed):
    if seed == "never":
        return [{", ".join(f"self.name_{number}" for number in range(300))}]
    return np.random.seed(seed) if seed is not None else 0.5
""",
        __file__,
        "exec",
    ),
    AMONG_MANY_NAMES,
)


DRAWS: dict[str, list[Callable[[], Any]]] = {
    "random": [
        lambda: random.random(),
        lambda: random.uniform(1, 2),
        lambda: random.shuffle([1, 2, 3]),
        lambda: random.choices("abc", k=2),
        deep_within,
    ],
    "numpy.random": [
        lambda: np.random.rand(2),
        lambda: np.random.shuffle([1, 2, 3]),
        lambda: under_another_name(),
        lambda: OWN.permutation(4),
        Keeps().draws,
        in_a_generator_expression,
        over_several_lines,
    ],
    "torch": [
        lambda: torch.rand(2),
        lambda: torch.zeros(2).uniform_(),
        lambda: torch.nn.functional.dropout(torch.ones(9)),
        lambda: torch.nn.Dropout()(torch.ones(9)),
        lambda: torch.distributions.Normal(0, 1).sample(),
        lambda: torch.randperm(5),
        lambda: torch.utils.data.random_split(range(4), [2, 2]),
    ],
}
SEEDS: dict[str, Callable[[], Any]] = {
    "random": lambda: random.seed(3),
    "numpy.random": lambda: np.random.seed(3),
    "torch": lambda: torch.manual_seed(3),
}
"""They leave a generator as it was, when it was seeded so before."""
NUMPYS_OWN = np.random.default_rng(5)
NONE: list[Callable[[], Any]] = [
    lambda: random.Random(5).random(),
    lambda: random.SystemRandom().random(),
    lambda: NUMPYS_OWN.normal(),
    lambda: np.random.RandomState(5).rand(),
    Keeps().draws_its_own,
    lambda: (random.getstate(), np.random.get_state()),
    lambda: torch and (torch.get_rng_state(), torch.initial_seed()),
    lambda: np.zeros(50) @ np.zeros(50),
    lambda: sorted(range(50)),
    lambda: seeds_if_asked(None),
    lambda: AMONG_MANY_NAMES["seeds"](None),
    lambda: torch and torch.rand(2, generator=torch.Generator()),
    lambda: torch and torch.ones(99) @ torch.ones(99),
]
LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(name == "torch" and torch is None, reason="extra"))
    for name in DRAWS
]


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its first warning, and leaves the generators as they were."""
    monkeypatch.setattr(global_generators, "_warned", set())
    python, numpy = random.getstate(), np.random.get_state()
    torchs = None if torch is None else torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    if torch is not None:
        torch.set_rng_state(torchs)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far."""
    caplog.set_level(logging.WARNING, "aioqueue")
    return lambda: [one for one in caplog.messages if "draws on threads from" in one]


@contextlib.contextmanager
def a_busy_program() -> Iterator[None]:
    """Another thread draws from all generators, all the time."""
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            random.random()
            np.random.rand()
            if torch is not None:
                torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def found_by(finder: DrawsFinder, function: Callable[[], Any], calls: int) -> None:
    for _ in range(calls):
        finder(function)


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_way_to_draw_is_found(library: str, warned: Any) -> None:
    seeds = [SEEDS[library]]
    if library == "numpy.random":
        seeds += [lambda: seeds_if_asked(3), lambda: AMONG_MANY_NAMES["seeds"](3)]
    for number, draw in enumerate([*DRAWS[library], *seeds]):
        found_by(DrawsFinder(f"function {number}", "Do so."), draw, 9)
        assert len(warned()) == number + 1, number
        assert warned()[-1].startswith(
            f"function {number} draws on threads from the global generator of {library} ({library}."
        )
        assert warned()[-1].endswith(" Do so.")
        assert f"{__name__.rpartition('.')[2]}.py:" in warned()[-1]


def test_a_function_that_draws_from_none_is_never_named(warned: Any) -> None:
    with a_busy_program():
        for number, function in enumerate(NONE):
            found_by(DrawsFinder(f"function {number}", ""), function, 300)
    assert warned() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_functions_beside_a_busy_program(seed: int, warned: Any) -> None:
    """Each draws from what it was made of: that is warned, and nothing else."""
    draw = random.Random(seed)
    libraries = [one for one in DRAWS if torch is not None or one != "torch"]
    with a_busy_program():
        for number in range(10):
            wanted = draw.sample(libraries, draw.randint(0, len(libraries)))
            rare = draw.choice((1, 1, 3))
            ways = {one: [*DRAWS[one], *([SEEDS[one]] if rare == 1 else [])] for one in wanted}
            parts = [draw.choice(ways[one]) for one in wanted] + draw.choices(NONE, k=3)
            draw.shuffle(parts)

            def function(
                parts: list[Any] = parts,
                rare: int = rare,
                calls: list[int] = [0],  # noqa: B006
            ) -> None:
                calls[0] += 1
                for part in parts if calls[0] % rare == 0 else []:
                    part()

            name = f"function {number} of {seed}"
            found_by(DrawsFinder(name, ""), function, 600)
            mine = {one.split("generator of ")[1].split()[0] for one in warned() if name in one}
            assert mine == set(wanted), (name, parts)


def test_a_profiler_or_debugger_of_the_user_stays(warned: Any) -> None:
    seen: list[str] = []

    def profiler(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    sys.setprofile(profiler)
    try:
        found_by(DrawsFinder("f", ""), DRAWS["random"][0], 9)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert seen
    assert warned() == []


def test_what_raises_is_found_too(warned: Any) -> None:
    def function() -> None:
        random.random()
        raise KeyError("x")

    finder = DrawsFinder("f", "")
    for _ in range(3):
        with pytest.raises(KeyError):
            finder(function)
    assert len(warned()) == 1
    assert sys.getprofile() is None


def prepared(function: Callable[..., Any], count: int = 20, **options: Any) -> list[Any]:
    pipeline = inputs.items(range(count)).prepare(function, **options)
    return list(pipeline)


def draws(item: int) -> float:
    return item + random.random()


def draws_each(item: int) -> Iterator[float]:
    yield item
    yield item + random.random()


def takes_a_generator(item: int, rng: Any) -> float:
    return item + float(rng.random())


class TestPrepare:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"workers": 3},
            {"ordered": False, "workers": 2},
            {"workers": 2, "item_timeout": 60},
            {"workers": 2, "concurrency_key": lambda item: item % 3, "max_per_key": 1},
        ],
        ids=lambda options: "-".join(options) or "plain",
    )
    def test_it_warns_once_with_the_cure(self, options: Any, warned: Any) -> None:
        for _ in range(2):
            prepared(draws, where="thread", **options)
        (message,) = warned()
        assert message.startswith("draws draws on threads from the global generator of random (")
        assert "random.random, " in message
        assert "Pass where='process'" in message
        assert "parameter rng" in message

    def test_generators_are_watched_as_they_run(self, warned: Any) -> None:
        assert len(prepared(draws_each, where="thread")) == 40
        assert len(warned()) == 1

    def test_what_begins_later_is_found(self, warned: Any) -> None:
        prepared(lambda item: random.random() if item > 900 else 0, 4000, workers=2)
        assert len(warned()) == 1

    def test_into_a_queue(self, warned: Any) -> None:
        queue = FIFOQueue(100)
        source = FIFOQueue(100)
        for item in range(20):
            source.enqueue(item)
        source.close()
        with Coordinator() as coord:
            coord.start(inputs.prepare(source, draws, into=queue, where="thread"))
            assert len(list(queue)) == 20
        assert len(warned()) == 1

    def test_what_is_as_it_should_be(self, warned: Any) -> None:
        with a_busy_program():
            assert prepared(takes_a_generator, 300, workers=3, seed=5) == prepared(
                takes_a_generator, 300, workers=2, seed=5
            )
            prepared(lambda item: item * 2, 300, workers=3)
        assert warned() == []

    def test_tasks_are_the_program_itself(self, warned: Any) -> None:
        async def function(item: int) -> float:
            return item + random.random()

        async def run() -> int:
            pipeline = inputs.items(range(20)).prepare(function)
            return len([one async for one in pipeline])

        assert asyncio.run(run()) == 20
        assert warned() == []

    @pytest.mark.slow
    def test_processes_have_their_own(self, warned: Any) -> None:
        before = random.getstate()
        assert len(prepared(draws, where="process", workers=2)) == 20
        assert random.getstate() == before
        assert warned() == []
