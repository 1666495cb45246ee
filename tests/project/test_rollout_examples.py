"""The examples of `RolloutQueue`: GRPO from nothing, and generation by an inference server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.worlds import spin_until
from tests.project.test_examples import ROOT, run

GRPO = "examples/async_grpo.py"
SERVER = "examples/rollout_server.py"

needs_server = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("httpx", "starlette", "uvicorn")),
    reason="httpx, or the extra `service` (uvicorn, starlette), is not installed",
)


def load(script: str) -> ModuleType:
    """Import an example."""
    name = Path(script).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def spin_until_changed(path: Path, before: bytes) -> None:
    spin_until(lambda: path.exists() and path.read_bytes() != before)


class TestGRPO:
    @pytest.mark.slow
    @pytest.mark.parametrize(("steps_ahead", "accuracy"), [(0, 0.6), (1, 0.4)])
    def test_it_learns_to_add(
        self, monkeypatch: pytest.MonkeyPatch, steps_ahead: int, accuracy: float
    ) -> None:
        """With the generation ahead, how fast it learns depends on times."""
        example = load(GRPO)
        for pause in ("TOKEN_SECONDS", "TRAINING_SECONDS", "PUBLICATION_SECONDS"):
            monkeypatch.setattr(example, pause, 0.0)
        untrained = asyncio.run(example.run(0, steps_ahead, seed=7))
        trained = asyncio.run(example.run(45, steps_ahead, seed=7))
        assert untrained.accuracy < 0.2
        assert trained.accuracy > accuracy
        assert trained.mean_staleness <= steps_ahead

    @pytest.mark.slow
    def test_it_compares_how_far_ahead_generation_may_be(self) -> None:
        done = run(GRPO, "--steps", "4")
        assert done.returncode == 0, done.stderr
        rows = re.findall(
            r"^ +(\d) +([\d.]+)% +(\d+)% +([\d.]+) +(\d+) ", done.stdout, re.MULTILINE
        )
        assert [row[0] for row in rows] == ["0", "1", "2"]
        assert rows[0][3:] == ("0.00", "0")
        assert done.stderr == ""

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
    @pytest.mark.parametrize("steps_ahead", [0, 1])
    def test_a_run_that_was_interrupted_and_killed_continues_exactly(
        self, tmp_path: Path, steps_ahead: int
    ) -> None:
        whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
        options = ["--steps", "12", "--steps-ahead", str(steps_ahead), "--save"]
        assert run(GRPO, *options, str(whole)).returncode == 0

        for number in (signal.SIGINT, signal.SIGKILL):
            before = parts.read_bytes() if parts.exists() else b""
            command = [sys.executable, GRPO, *options, str(parts)]
            with subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                spin_until_changed(parts, before)
                process.send_signal(number)
                output, errors = process.communicate(timeout=20)
            assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
            assert errors == ""
            if number == signal.SIGINT:
                assert "interrupted: the same command continues" in output
        last = run(GRPO, *options, str(parts))
        assert last.returncode == 0, last.stderr
        assert re.search(r"continues after step \d+", last.stdout)

        expected, found = (json.loads(path.read_text())["state"] for path in (whole, parts))
        if steps_ahead == 0:  # nothing depends on time
            assert found == expected
        machine = found["rollouts"]["machine"]
        assert machine["step"] == machine["version"] == 12
        assert machine["trained"] == 12 * load(GRPO).BATCH_SIZE
        ended = machine["lowest_open"] + sum(end - start for start, end in machine["ended"])
        assert machine["trained"] + machine["refused"] == ended, "each prompt once"


@needs_server
class TestInferenceServer:
    @pytest.mark.slow(but="vllm-keep")
    @pytest.mark.parametrize("pause", ["keep", "abort"])
    @pytest.mark.parametrize("kind", ["vllm", "sglang"])
    def test_requests_in_flight_survive_new_weights(self, kind: Any, pause: str) -> None:
        from tests.project.inference_server import n_tokens, serving

        example = load(SERVER)
        with serving(kind) as fake:
            batches = train(example, fake, aborts=pause == "abort")
        assert fake.loaded == [f"weights {step}" for step in range(6)]
        assert not fake.is_paused
        rollouts = [one for batch in batches for group in batch.groups for one in group.rollouts]
        for one in rollouts:
            versions = [int(token.removeprefix("v")) for token in one.result.text.split()]
            noted = [version for version, n in one.spans for _ in range(n)]
            assert noted == versions, "each token is of the version that the rollout names"
            assert len(one.result.logprobs) == len(versions) == n_tokens(one.seed % 2**31)
        assert any(len(one.spans) > 1 for one in rollouts)
        continued = [prompt for prompt in fake.prompts if not prompt.endswith("Answer: ")]
        assert bool(continued) == (pause == "abort")

    @pytest.mark.slow
    def test_weights_that_cannot_be_loaded_end_the_run_and_resume_the_server(self) -> None:
        from tests.project.inference_server import serving

        example = load(SERVER)
        with serving("sglang") as fake:
            fake.broken.add("weights 2")
            with pytest.raises(ExceptionGroup, match="500 Internal Server Error"):
                train(example, fake, aborts=False)
            assert fake.loaded == ["weights 0", "weights 1"]
            assert not fake.is_paused

    @pytest.mark.slow
    def test_it_runs_as_a_program(self) -> None:
        from tests.project.inference_server import serving

        with serving("vllm") as fake:
            done = run(SERVER, fake.url, "a-model", "--steps", "2")
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^step (\d): reward [\d.]+, \d+ tokens", done.stdout, re.MULTILINE) == [
            "0",
            "1",
        ]
        assert fake.loaded == ["a-model", "a-model"]
        assert done.stderr == ""


def train(example: ModuleType, fake: Any, *, aborts: bool) -> list[Any]:
    """Train on completions of a fake server; return the batches."""
    batches = []

    async def publish(batch: Any) -> str:
        batches.append(batch)
        return f"weights {batch.step}"

    async def main() -> None:
        import httpx

        async with httpx.AsyncClient(base_url=fake.url, timeout=20) as client:
            controls = example.CONTROLS[fake.kind]
            server = example.InferenceServer(client, "a-model", controls, aborts=aborts)
            await example.run(server, publish, 6, batch_size=4, group_size=2)

    asyncio.run(main())
    return batches
