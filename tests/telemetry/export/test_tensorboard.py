"""Scalars in the files of TensorBoard, written by a real writer and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.telemetry.export.tensorboard import ScalarSender
from tests.telemetry.fluid_model import usual


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars in the files of a folder: step and value, by tag."""
    record_writer = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        at = 0
        while at < len(data):  # length, its checksum, the event, and its checksum
            length = int.from_bytes(data[at : at + 8], "little")
            event = record_writer.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def writers(folder: Path) -> list[Any]:
    found = []
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            module = pytest.importorskip(name)
        except pytest.skip.Exception:
            continue
        found.append(module.SummaryWriter(str(folder / name)))
    return found


def test_scalars_are_written_every_few_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra `summaries`")
    watching = usual(60)
    expected = watching.scalars()
    for number, writer in enumerate(writers(tmp_path)):
        sender = ScalarSender(watching, writer, every=10)
        for _ in range(35):
            sender.step()
        writer.close()
        found = read_back(sorted(tmp_path.iterdir())[number])
        assert set(found) == set(expected)
        for tag, points in found.items():
            assert [step for step, _ in points] == [9, 19, 29]
            assert points[0][1] == pytest.approx(expected[tag], rel=1e-6)


class Recording:
    def __init__(self) -> None:
        self.written: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, value: float, step: int | None = None) -> None:
        self.written.append((tag, value, step))


def test_the_training_loop_can_count_the_steps() -> None:
    writer = Recording()
    sender = ScalarSender(usual(5), writer, every=100)
    for number in range(950, 1250):
        sender.step(number)
    assert {step for _, _, step in writer.written} == {999, 1099, 1199}


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_is_a_count(every: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^every: got "):
        ScalarSender(usual(3), Recording(), every)


def test_a_writer_must_have_add_scalar() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^writer: got 'logs'; expected an object with"):
        ScalarSender(usual(3), "logs")  # type: ignore[arg-type]


def test_a_failing_writer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        calls = 0

        def add_scalar(self, tag: str, value: float, step: int | None = None) -> None:
            self.calls += 1
            raise OSError("no space left")

    writer = Full()
    sender = ScalarSender(usual(60), writer, every=1)
    for _ in range(5):
        sender.step()
    assert writer.calls == 5  # the disk may have room again
    (record,) = [one for one in caplog.records if one.name == "aioqueue"]
    assert "cannot write scalars" in record.message
    assert record.exc_info is not None
