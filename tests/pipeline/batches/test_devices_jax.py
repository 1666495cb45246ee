"""What only JAX has: shardings, dtypes of its own, and memory that it would rather not copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioqueue.inputs import items, numbers

jax: Any = pytest.importorskip("jax", reason="jax is not installed (pip install '.[jax]')")


def test_a_sharding_places_arrays() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    found = list(numbers(4).batch(2).to_device(sharding))
    assert [batch.sharding for batch in found] == [sharding] * 2
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3]]


def test_a_batch_may_be_given_to_a_step_that_writes_over_it() -> None:
    """Then its array is deleted, which may not disturb the batches after it."""

    def doubled(batch: Any) -> Any:
        return 2 * batch

    step = jax.jit(doubled, donate_argnums=0)
    pipeline = numbers(40).prepare(np.float32).batch(4).to_device(jax.devices("cpu")[0])
    found = [step(batch).tolist() for batch in pipeline]
    assert found == [[2.0 * (4 * n + k) for k in range(4)] for n in range(10)]


def test_its_own_dtypes() -> None:
    values = np.arange(4).astype(jax.numpy.bfloat16)
    (found,) = items([[values]]).to_device(jax.devices("cpu")[0])
    assert found[0].dtype == jax.numpy.bfloat16
    assert found[0].tolist() == [0, 1, 2, 3]


def test_memory_that_is_aligned_is_not_kept() -> None:
    """Arrays of JAX on a CPU may be the memory that they were made of, where that is aligned."""
    memory = np.zeros(64 + 64, np.uint8)
    values = memory[-memory.ctypes.data % 64 :][:64].view(np.float32)
    (found,) = items([[values]]).to_device(jax.devices("cpu")[0])
    values[:] = 1
    assert found[0].tolist() == [0.0] * 16
