"""Types that a program has registered with JAX, PyTorch or optree are containers here, too."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError, sync
from aioqueue.core.elements.ownership import copy_if_shared
from aioqueue.core.elements.trees import NAMESPACE, branch_of, mapped, registered
from aioqueue.inputs import ArraySpec, items, numbers
from aioqueue.pipeline.batches.collation import Collator
from tests.kit.frameworks import FRAMEWORKS, Framework
from tests.kit.resuming import through_json


class Measured:
    """Two arrays and a unit, in a class that nobody knows."""

    def __init__(self, value: Any, error: Any, unit: str = "m") -> None:
        self.value = value
        self.error = error
        self.unit = unit

    @classmethod
    def of(cls, unit: str, parts: Any) -> Measured:
        """Put it together."""
        return cls(parts[0], parts[1], unit)


def with_jax(kind: type[Any]) -> None:
    tree_util: Any = importlib.import_module("jax.tree_util")
    keys = tree_util.GetAttrKey
    tree_util.register_pytree_with_keys(
        kind,
        lambda one: (((keys("value"), one.value), (keys("error"), one.error)), one.unit),
        kind.of,
    )


def with_torch(kind: type[Any]) -> None:
    pytree: Any = importlib.import_module("torch.utils._pytree")
    pytree.register_pytree_node(
        kind,
        lambda one: ([one.value, one.error], one.unit),
        lambda parts, unit: kind.of(unit, parts),
        flatten_with_keys_fn=lambda one: (
            [(pytree.GetAttrKey(name), getattr(one, name)) for name in ("value", "error")],
            one.unit,
        ),
    )


def with_torch_without_names(kind: type[Any]) -> None:
    pytree: Any = importlib.import_module("torch.utils._pytree")
    pytree.register_pytree_node(
        kind,
        lambda one: ([one.value, one.error], one.unit),
        lambda parts, unit: kind.of(unit, parts),
    )


def with_optree(kind: type[Any]) -> None:
    optree: Any = importlib.import_module("optree")
    optree.register_pytree_node(
        kind,
        lambda one: ((one.value, one.error), one.unit, ("value", "error")),
        kind.of,
        namespace=NAMESPACE,
    )


WAYS: dict[str, tuple[str, Callable[[type[Any]], None], list[str]]] = {
    "jax": ("jax", with_jax, ["x.value", "x.error", "y"]),
    "torch": ("torch", with_torch, ["x.value", "x.error", "y"]),
    "torch, without names": ("torch", with_torch_without_names, ["x[0]", "x[1]", "y"]),
    "optree": ("optree", with_optree, ["x.value", "x.error", "y"]),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[type[Any], list[str]]:
    """A class that is registered, and how its parts are called."""
    library, register, labels = WAYS[request.param]
    pytest.importorskip(library, reason=f"{library} is not installed")
    kind = type("Measured", (Measured,), {})
    register(kind)
    return kind, labels


def example(kind: type[Any], item: int) -> Any:
    return {"x": kind(np.full(2, item, "f4"), {"low": item, "high": None}), "y": item}


def test_batches(way: Any) -> None:
    kind, _ = way
    (made,) = numbers(3).prepare(lambda item: example(kind, item)).shuffle(2, seed=1).batch(3)
    assert type(made["x"]) is kind
    assert made["x"].unit == "m"
    assert made["x"].value.shape == (3, 2)
    assert sorted(made["x"].error["low"].tolist()) == [0, 1, 2]
    assert made["x"].error["high"] is None


def test_rows_of_batches(way: Any) -> None:
    kind, _ = way
    rows = list(items([example(kind, item) for item in range(4)]).batch(2).unbatch())
    assert [type(row["x"]) for row in rows] == [kind] * 4
    assert [row["x"].error["low"] for row in rows] == [0, 1, 2, 3]


def test_paths(way: Any) -> None:
    kind, labels = way
    later = example(kind, 1)
    later["x"].value = np.zeros(3, "f4")
    with pytest.raises(InvalidArgumentError, match="component ") as raised:
        Collator()([example(kind, 1), later])
    assert str(raised.value).startswith(f"component {labels[0]}: got a value of shape [3]")


def test_another_definition_is_refused(way: Any) -> None:
    kind, _ = way
    later = example(kind, 1)
    later["x"].unit = "km"
    with pytest.raises(InvalidArgumentError, match="example at x: got a Measured defined by"):
        Collator()([example(kind, 1), later])
    with pytest.raises(InvalidArgumentError, match="example at x: got an int; the first one was a"):
        Collator()([example(kind, 1), {"x": 1, "y": 1}])


def test_states_are_resumed(way: Any) -> None:
    kind, _ = way
    first, second = Collator(), Collator()
    made = first([example(kind, 1)])
    second.restore_layout(through_json(first.layout))
    later = second([{"y": 2, "x": kind([1, 2], {"low": 2, "high": None})}])
    assert type(later["x"]) is kind
    assert later["x"].value.dtype == made["x"].value.dtype == np.float32


def test_padding_and_sequences(way: Any) -> None:
    kind, _ = way
    examples: list[Any] = [{"x": kind([1] * size, np.full(size, 2.5))} for size in (1, 3)]
    (made,) = items(examples).batch(2, pad=True)
    assert made["x"].value.tolist() == [[1, 0, 0], [1, 1, 1]]
    ((lengths, made),) = items(examples).bucket([9], 2)
    assert lengths.tolist() == [1, 3]
    (row,) = items(examples).pack(4)
    assert row["x"].error.tolist() == [2.5] * 4


def test_queues(way: Any) -> None:
    kind, _ = way
    queue = sync.FIFOQueue(4, {"x": kind("f4", {"a": "i8"})}, {"x": kind((2,), {"a": ()})})
    for item in range(2):
        queue.enqueue({"x": kind(np.full(2, item), {"a": item})})
    made = queue.dequeue_many(2)
    assert type(made["x"]) is kind
    assert made["x"].value.tolist() == [[0, 0], [1, 1]]


def test_what_waits_is_private(way: Any) -> None:
    kind, _ = way
    shared = np.zeros(2)
    kept = copy_if_shared({"x": kind(shared, 1)})
    shared += 1
    assert kept["x"].value.tolist() == [0, 0]
    endless = kind(1, 2)
    endless.error = [endless]
    assert copy_if_shared(endless) is endless


def test_specs(way: Any) -> None:
    kind, _ = way
    spec = items([example(kind, item) for item in range(4)]).batch(2).element_spec()
    assert type(spec["x"]) is kind
    assert spec["x"].value == ArraySpec((None, 2), np.dtype("f4"))


def test_an_unregistered_type_is_a_leaf() -> None:
    class Unknown(Measured):
        """It is registered nowhere."""

    assert registered(Unknown(1, 2)) is None
    assert branch_of(Unknown(1, 2)) is None
    with pytest.raises(InvalidArgumentError, match=r"component x: got <.*Unknown"):
        Collator()([{"x": Unknown(1, 2)}])


def test_a_library_that_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = type(sys)("empty")
    for name in ("jax.tree_util", "torch.utils._pytree", "optree"):
        monkeypatch.setitem(sys.modules, name, empty)
    assert registered(Measured(1, 2)) is None


@pytest.mark.parametrize("library", ["jax.tree_util", "torch.utils._pytree", "optree"])
def test_pythons_own_types_are_the_same_trees_whatever_is_imported(library: str) -> None:
    """Each library registers some of them, and another one others."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    plain, ordered = {"a": 1, "b": 2}, OrderedDict(b=4, a=3)
    for examples in ([plain, ordered], [ordered, plain], [ordered, OrderedDict(plain)]):
        made = Collator()(examples)
        assert type(made) is dict
        assert sorted(made["a"].tolist()) == [1, 3]
    assert type(Collator()([defaultdict(list, a=1)])) is dict
    with pytest.raises(InvalidArgumentError, match="component x: got deque"):
        Collator()([{"x": deque([1, 2])}])


@pytest.mark.parametrize("one", FRAMEWORKS, ids=[one.name for one in FRAMEWORKS])
def test_on_a_device(one: type[Framework]) -> None:
    framework = one()
    kind = type("Measured", (Measured,), {})
    {"torch": with_torch, "jax": with_jax}[framework.name](kind)
    pipeline = items([example(kind, item) for item in range(4)]).batch(2)
    for made in pipeline.to_device(framework.device):
        assert type(made["x"]) is kind
        found: list[Any] = []
        mapped(found.append, made)
        assert [(leaf is None) or isinstance(leaf, framework.kind) for leaf in found] == [True] * 4


class TestTensors:
    """What PyTorch has and NumPy has not: a refusal says what to write."""

    @pytest.mark.parametrize(
        ("way", "make"),
        [
            ("x.float()", lambda torch: torch.zeros(2, dtype=torch.bfloat16)),
            ("x.detach()", lambda torch: torch.zeros(2, requires_grad=True)),
            (
                "x.detach().float()",
                lambda torch: torch.zeros(2, dtype=torch.bfloat16, requires_grad=True),
            ),
        ],
    )
    def test_refused(self, way: str, make: Any) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        with pytest.raises(InvalidArgumentError, match=r"component x\.a: got tensor") as raised:
            Collator()([{"x": {"a": make(torch)}}])
        assert f"(write {way} for a tensor x)" in str(raised.value)
        queue = sync.FIFOQueue(1, {"x": {"a": "f4"}})
        with pytest.raises(InvalidArgumentError, match=r"component x\.a: got tensor") as raised:
            queue.enqueue({"x": {"a": make(torch)}})
        assert f"(write {way} for a tensor x)" in str(raised.value)

    def test_taken(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        (made,) = items([{"x": {"a": torch.ones(2)}}] * 2).batch(2)
        assert made["x"]["a"].dtype == np.float32

    def test_as_torch_with_its_own_function(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        collate = torch.utils.data.default_collate
        examples = [{"x": {"a": torch.ones(2, dtype=torch.bfloat16)}}] * 2
        (made,) = items(examples).batch(2, collate=collate).to_device("cpu")
        assert made["x"]["a"].dtype == torch.bfloat16

    def test_arrays_of_jax_are_taken_as_they_are(self) -> None:
        jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
        (made,) = items([{"x": {"a": jnp.ones(2, jnp.bfloat16)}}] * 2).batch(2)
        assert made["x"]["a"].dtype == jnp.bfloat16
