"""The suite's tests of batchers, whose calls come through a connection: as from another process.

The batcher, its functions and its block are in the process of the tests, which look at them. Its
callers have a handle, as they would have it elsewhere.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

import aioqueue
from aioqueue.base.public_names import World
from aioqueue.sharing import batchers
from tests.batcher import models, test_batcher, test_batcher_ends
from tests.batcher.models import AwaitedBatcher, Model
from tests.kit import worlds
from tests.kit.bodies import Body, bodies_of
from tests.kit.worlds import WORLDS

MODULES = (test_batcher, test_batcher_ends)
LEFT_OUT: dict[str, set[str]] = {
    "the text of a handle also says who shares it: see `test_batchers.py`": {"test_repr"},
    "values, results and failures are pickled": {
        "test_a_value_that_is_returned_is_a_copy",
        "test_have_the_traceback_of_the_function",
        "test_of_one_request_never_ends_its_caller",
        "test_cannot_be_mistaken_for_a_clean_stop",
        "test_when_other_code_has_closed_the_queue",
        "test_fail_all_callers",
        "test_each_copy_has_its_context_notes_and_frames",
        "test_a_frozen_exception_keeps_its_type",
    },
}
"""By the reason why."""

MODELS = ("task", "thread")

BODIES = [
    parameter
    for module in MODULES
    for parameter in bodies_of(
        module, set().union(*LEFT_OUT.values()), ["model", "model_here", "monkeypatch"]
    )
]


class CalledByHandle:
    """A batcher whose callers have a handle.

    Args:
        owner: the batcher itself.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        face = getattr(owner, "face", owner)
        world: World = "aio" if isinstance(face, aioqueue.Batcher) else "sync"
        face.share()
        _, (_, address, thing, description) = face._core.shared.pickled(world)
        handle: Any = batchers._handle(world, address, thing, description)
        self.handle = handle if world == "aio" else AwaitedBatcher(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle if name == "statistics" else self.owner, name)

    def __repr__(self) -> str:
        return repr(self.owner)

    @property
    def sync(self) -> Any:
        return self.handle.sync

    @property
    def aio(self) -> Any:
        return self.handle.aio

    async def __call__(self, value: Any, **options: Any) -> Any:
        return await self.handle(value, **options)

    async def __aenter__(self) -> Any:
        await self.owner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self.owner.__aexit__(*raised)


def cases() -> Any:
    for parameter, world, model in itertools.product(BODIES, WORLDS, MODELS):
        body: Body = parameter.values[0]
        if not body.fits(world):
            continue
        if model != MODELS[0] and not {"model", "model_here"} & {*body.parameters}:
            continue
        yield pytest.param(
            world,
            body,
            model,
            id=f"{parameter.id}-{world.name}-{model}",
            marks=parameter.marks,
        )


def test_what_is_left_out_is_there() -> None:
    places = [
        place
        for module in MODULES
        for place in (module, *(case for _, case in inspect.getmembers(module, inspect.isclass)))
    ]
    names = {name for place in places for name in vars(place)}
    assert set().union(*LEFT_OUT.values()) <= names


@pytest.mark.slow(but="test_every_caller_gets_its_result-asyncio")
@pytest.mark.parametrize(("world", "body", "model"), list(cases()), indirect=["world"])
def test_is_that_of_one_process(
    world: worlds.World, body: Body, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Model(model)
    batcher_of = models.batcher_of

    def shared(*arguments: Any, **options: Any) -> Any:
        return CalledByHandle(batcher_of(*arguments, **options))

    for module in MODULES:
        monkeypatch.setattr(module, "batcher_of", shared)
    body.run(world, model=made, model_here=made, monkeypatch=monkeypatch)
