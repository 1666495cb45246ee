"""Positions in the checkpoints of frameworks: `Epochs` goes into them as it is.

Each of them saves what is where, and loads it into epochs that were just made; what follows is what
would have followed. A framework that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Pipeline, numbers
from aioqueue.pipeline.epochs import Epochs
from tests.kit.resuming import Batches, How, noisy, ordered_shapes, run, write_files

pytestmark = pytest.mark.filterwarnings(
    "default::DeprecationWarning", "default::FutureWarning", "default::UserWarning"
)

EPOCHS = 2

Way = Callable[["Epochs[Any]", Path, Callable[[], "Epochs[Any]"]], "Epochs[Any]"]
"""Saves epochs, and loads them into others, which it has made."""


def torch_save(epochs: Epochs[Any], folder: Path, make: Callable[[], Epochs[Any]]) -> Epochs[Any]:
    torch = pytest.importorskip("torch")
    torch.save({"data": epochs.state_dict()}, folder / "checkpoint.pt")
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    made = make()
    made.load_state_dict(kept["data"])
    return made


@contextmanager
def process_group() -> Iterator[None]:
    dist: Any = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def dcp(epochs: Epochs[Any], folder: Path, make: Callable[[], Epochs[Any]]) -> Epochs[Any]:
    torch = pytest.importorskip("torch")
    saver: Any = pytest.importorskip("torch.distributed.checkpoint")
    with process_group():
        made = make()
        saver.save({"data-0": epochs, "model": torch.nn.Linear(2, 3)}, checkpoint_id=folder)
        saver.load({"data-0": made, "model": torch.nn.Linear(2, 3)}, checkpoint_id=folder)
    return made


def orbax(epochs: Epochs[Any], folder: Path, make: Callable[[], Epochs[Any]]) -> Epochs[Any]:
    ocp: Any = pytest.importorskip("orbax.checkpoint")
    with ocp.CheckpointManager(folder) as manager:
        manager.save(5, args=ocp.args.JsonSave(epochs.state_dict()))
        manager.wait_until_finished()
        made = make()
        made.load_state_dict(manager.restore(5, args=ocp.args.JsonRestore()))
    return made


def accelerate(epochs: Epochs[Any], folder: Path, make: Callable[[], Epochs[Any]]) -> Epochs[Any]:
    accelerate: Any = pytest.importorskip("accelerate")
    saves = accelerate.Accelerator(cpu=True)
    saves.register_for_checkpointing(epochs)
    saves.save_state(str(folder))
    made, loads = make(), accelerate.Accelerator(cpu=True)
    loads.register_for_checkpointing(made)
    loads.load_state(str(folder))
    return made


def fabric(epochs: Epochs[Any], folder: Path, make: Callable[[], Epochs[Any]]) -> Epochs[Any]:
    lightning: Any = pytest.importorskip("lightning")
    fabric, made = lightning.Fabric(accelerator="cpu", devices=1), make()
    fabric.save(folder / "checkpoint.ckpt", {"data": epochs})
    fabric.load(folder / "checkpoint.ckpt", {"data": made})
    return made


WAYS: tuple[Way, ...] = (torch_save, dcp, orbax, accelerate, fabric)


def saved_at(pipeline: Pipeline[Any], most: int, way: Way, folder: Path) -> tuple[Batches, Batches]:
    """What came before a checkpoint, and what came from it."""
    with pipeline.epochs(EPOCHS) as epochs:
        head = list(taken(epochs, most))
        with way(epochs, folder, lambda: pipeline.epochs(EPOCHS)) as others:
            rest = list(taken(others))
    return head, rest


def taken(epochs: Epochs[Any], most: int | None = None) -> Iterator[tuple[int, Any]]:
    if most == 0:
        return
    count = 0
    for epoch in epochs:
        for batch in epoch:
            yield epoch.number, [np.asarray(part).tolist() for part in batch]
            count += 1
            if count == most:
                return


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("most", [0, 1, 5, 8, 9, 16])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_epochs_as_they_are(way: Way, most: int, tmp_path: Path) -> None:
    """Before the first batch, within an epoch, at its end, and behind the last one."""
    pipeline = numbers(32, shuffle=True, seed=7).prepare(noisy).shuffle(9).batch(4).prefetch(1)
    with pipeline.epochs(EPOCHS) as epochs:
        whole = list(taken(epochs))
    head, rest = saved_at(pipeline, most, way, tmp_path)
    assert head + rest == whole
    assert (len(whole), len(head)) == (16, most)


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("name", ordered_shapes(Path()))
def test_positions_of_a_pipeline_have_the_same_entries(name: str, tmp_path: Path) -> None:
    """DCP saves each by itself, and asks for those that there are before the first batch. A list
    without dicts is one entry, whatever is in it."""

    def has_dicts(value: Any) -> bool:
        return isinstance(value, dict) or (isinstance(value, list) and any(map(has_dicts, value)))

    def entries(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: entries(one) for key, one in value.items()}
        return [entries(one) for one in value] if has_dicts(value) else ...

    pipeline = ordered_shapes(write_files(tmp_path))[name](How())
    fresh = entries(pipeline.epochs(EPOCHS).state_dict())
    for most in (1, 4, None):
        assert entries(run(pipeline, EPOCHS, most)[1]) == fresh


def test_another_pipeline_is_refused_by_dcp_as_well(tmp_path: Path) -> None:
    one, other = (numbers(9, shuffle=True, seed=seed).shuffle(3).batch(2) for seed in (1, 2))
    pytest.importorskip("torch")
    with one.epochs(1) as epochs:
        next(next(epochs))
        with pytest.raises(BaseException) as refused:  # noqa: PT011  # DCP has its own
            dcp(epochs, tmp_path, lambda: other.epochs(1))
    assert isinstance(refused.value, InvalidArgumentError)
    assert "source.seed 1; expected 2" in str(refused.value)
