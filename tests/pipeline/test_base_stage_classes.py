"""What a stage is stands in its class, which is found by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import items, merge_positions
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import NUMBER
from aioqueue.pipeline.stages import base
from aioqueue.pipeline.stages.base import BaseStage, BuildContext, stage_class
from aioqueue.pipeline.stages.filter import FilterNode
from tests.kit.kinds import Kind, stage_kinds


@pytest.mark.parametrize("name", ["nothing", "base", "combining", "../os", "os", "", "a.b", "é"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        stage_class(name)


@pytest.mark.parametrize("kind", stage_kinds(), ids=lambda one: one.name)
def test_each_field_of_an_entry_has_a_check(kind: Kind) -> None:
    """A position may come from anywhere, so that no field is taken unread."""
    for field in kind.cls.entry_fields.values():
        with pytest.raises((ValueError, AttributeError, KeyError, TypeError)):
            field.check("entry", object())


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test defines is known in this test alone."""
    yield
    base._classes.pop("counting", None)


def define(**more: Any) -> type[BaseStage]:
    """A stage class that counts rows, as somebody who adds one may write it."""

    class Counting(BaseStage):
        name: ClassVar[str] = more.pop("name", "counting")
        locals().update(more)

        def details(self) -> str:
            return ""

        def node(self, upstream: Node, building: BuildContext) -> Node:
            return FilterNode(upstream, bool)

    return Counting


def test_a_stage_without_why_inelastic_is_refused_when_it_is_defined() -> None:
    """Otherwise merged positions of a stage that counts would lose examples in silence."""
    with pytest.raises(TypeError, match="Counting: got no why_inelastic; expected a class method"):
        define()
    with pytest.raises(KeyError):
        stage_class("counting")


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="got the name 'batch', which Batch has"):
        define(name="batch", why_inelastic=classmethod(lambda cls, arguments: None))
    assert stage_class("batch").__name__ == "Batch"


def test_the_reason_of_a_stage_is_in_the_message() -> None:
    def because(cls: type, arguments: Mapping[str, Any]) -> str:
        return "which keeps its own count"

    counting: Any = define(why_inelastic=classmethod(because), state_fields={"seen": NUMBER})
    assert not counting().is_elastic()
    pipeline = items(list(range(9))).shard(0, 1, uneven="allow")
    with pipeline._made_of(pipeline.source, (*pipeline.stages, counting())).epochs(1) as epochs:
        next(iter(next(epochs)))
        position = epochs.state_dict()
    with pytest.raises(InvalidArgumentError, match="with `counting`, which keeps its own count"):
        merge_positions([position])
