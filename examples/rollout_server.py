"""Rollouts from an inference server: streamed over HTTP, and kept while it takes new weights.

The server is vLLM's or SGLang's, or another one with the same endpoints::

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-0.6B --port 8000
    python examples/rollout_server.py http://127.0.0.1:8000 Qwen/Qwen3-0.6B

    python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --port 8000
    python examples/rollout_server.py http://127.0.0.1:8000 Qwen/Qwen3-0.6B --server sglang

* A rollout is a request to ``/v1/completions`` that is streamed. Each token comes with its
  logprob, and is noted with the version of the weights that have generated it: a loss with
  importance weights needs both.
* New weights are published in three calls: pause, load, resume. No request is lost for it. By
  default the server keeps what it was generating, and continues with the new weights. With
  ``--abort`` it ends all requests at the pause, and this program continues each of them by another
  one, from the tokens that it has. In both cases a rollout then has tokens of several versions.
* If the weights cannot be loaded, the server is resumed all the same, and the run ends with the
  error.
* The trainer is a place for yours: `train` below. It needs ``pip install httpx``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

import aioqueue
from aioqueue import inputs
from aioqueue.rl import Batch, Group, Rollout, RolloutQueue

QUESTIONS = [f"What is {a} + {b}? Answer: " for a in range(20) for b in range(20)]
MAX_TOKENS = 64


class Request(NamedTuple):
    """A control request: a path of the server, and what to send."""

    path: str
    content: dict[str, Any] | None = None


class Controls(NamedTuple):
    """How a kind of server takes new weights."""

    keep: Request  # pause, and keep the requests in flight
    abort: Request  # pause, and end them
    load: Callable[[str], Request]  # from a folder that the server can read
    resume: Request


CONTROLS = {
    "vllm": Controls(
        keep=Request("/pause?mode=keep"),
        abort=Request("/pause?mode=abort"),
        load=lambda weights: Request(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": weights}}
        ),
        resume=Request("/resume"),
    ),
    "sglang": Controls(
        keep=Request("/pause_generation", {"mode": "retract"}),
        abort=Request("/pause_generation", {"mode": "abort"}),
        load=lambda weights: Request("/update_weights_from_disk", {"model_path": weights}),
        resume=Request("/continue_generation", {}),
    ),
}


@dataclass(frozen=True)
class Completion:
    """A sample: its text, and the logprob of each token under the weights that generated it."""

    text: str
    logprobs: tuple[float, ...]


class Chunk(NamedTuple):
    """A part of a completion, as the server streams it."""

    text: str
    logprobs: list[float]
    finish_reason: str | None


class InferenceServer:
    """A client of an OpenAI-compatible server that takes new weights while it generates."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, controls: Controls, *, aborts: bool
    ) -> None:
        self._client = client
        self._model = model
        self._controls = controls
        self._aborts = aborts
        self.version = 0  # of the weights that the server generates with

    async def generate(self, prompt: str, rollout: Rollout[Completion]) -> Completion:
        """Make one sample, by as many requests as it takes.

        Raises:
            RuntimeError: the server has given up the request for a reason of its own.
        """
        text = ""
        logprobs: list[float] = []
        reason: str | None = "abort"
        while reason == "abort" and len(logprobs) < MAX_TOKENS:
            # If the server has ended the request for new weights, wait until they are published.
            await rollout.safe_point()
            reason = None
            left = MAX_TOKENS - len(logprobs)
            async for chunk in self._stream(prompt + text, left, rollout.seed % 2**31):
                text += chunk.text
                logprobs += chunk.logprobs
                rollout.mark(len(chunk.logprobs), version=self.version)
                reason = chunk.finish_reason or reason
        if reason not in ("stop", "length", "abort"):
            raise RuntimeError(f"the server has ended a completion with {reason!r}")
        return Completion(text, tuple(logprobs))

    async def _stream(self, prompt: str, max_tokens: int, seed: int) -> AsyncIterator[Chunk]:
        wanted = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "seed": seed,
            "logprobs": 1,
            "stream": True,
        }
        async with self._client.stream("POST", "/v1/completions", json=wanted) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                (choice,) = json.loads(data)["choices"]
                logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
                yield Chunk(choice["text"], logprobs, choice["finish_reason"])

    async def update(self, weights: str, version: int) -> None:
        """Let the server load weights. However that ends, it generates again afterwards."""
        controls = self._controls
        await self._post(controls.abort if self._aborts else controls.keep)
        try:
            await self._post(controls.load(weights))
            self.version = version
        finally:
            await self._post(controls.resume)

    async def _post(self, request: Request) -> None:
        response = await self._client.post(request.path, json=request.content)
        response.raise_for_status()


def score(group: Group[str, Completion]) -> bool:
    """Verify the answers, and give the group its advantages."""
    left, right = (int(word) for word in group.prompt.split("?")[0].split() if word.isdigit())
    wanted = str(left + right)
    rewards = [float(wanted in one.result.text.split()) for one in group.rollouts]
    mean = sum(rewards) / len(rewards)
    group.info["rewards"] = rewards
    group.info["advantages"] = [reward - mean for reward in rewards]
    return True


Train = Callable[[Batch[str, Completion]], Awaitable[str]]


def placeholder(model: str) -> Train:
    """Make a trainer that trains nothing: it publishes the model as it is."""

    async def train(batch: Batch[str, Completion]) -> str:
        """Train on a batch, and return the folder with the new weights."""
        await asyncio.sleep(1.0)
        return model

    return train


def report(batch: Batch[str, Completion]) -> None:
    rewards = [reward for group in batch.groups for reward in group.info["rewards"]]
    spans = [one.spans for group in batch.groups for one in group.rollouts]
    tokens = sum(n for parts in spans for _, n in parts)
    mixed = sum(len(parts) > 1 for parts in spans)
    print(
        f"step {batch.step}: reward {sum(rewards) / len(rewards):.2f}, {tokens} tokens,"
        f" {mixed} of {len(spans)} rollouts of several versions,"
        f" the oldest {max(batch.staleness)} steps old",
        flush=True,
    )


async def run(
    server: InferenceServer, train: Train, steps: int, *, batch_size: int = 8, group_size: int = 4
) -> RolloutQueue[str, Completion]:
    """Train for some steps on completions of the server."""
    rollouts: RolloutQueue[str, Completion] = RolloutQueue(
        inputs.items(QUESTIONS, shuffle=True, seed=7),
        batch_size=batch_size,
        group_size=group_size,
        steps_ahead=1,
        accept=score,
        seed=7,
    )
    async with aioqueue.Coordinator() as coord:
        coord.start(rollouts.generate(server.generate, retry=inputs.Retry(3), timeout=600))
        async for batch in rollouts.batches(steps):
            weights = await train(batch)
            async with rollouts.publishing() as publication:
                await server.update(weights, publication.version)
            report(batch)
    return rollouts


async def connect(url: str, model: str, kind: str, steps: int, *, aborts: bool) -> None:
    # Completions may take long, and as many run as the queue allows: the pool has no limit.
    timeout = httpx.Timeout(10.0, read=None)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:
        server = InferenceServer(client, model, CONTROLS[kind], aborts=aborts)
        rollouts = await run(server, placeholder(model), steps)
    print(rollouts.statistics().verdict)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rollouts from an inference server.")
    add = parser.add_argument
    add("url", help="of the server, http://127.0.0.1:8000 say")
    add("model", help="its name there")
    add("--server", choices=sorted(CONTROLS), default="vllm")
    add("--abort", action="store_true", help="end requests at each publication, and continue them")
    add("--steps", type=int, default=10)
    given = parser.parse_args(arguments)
    asyncio.run(connect(given.url, given.model, given.server, given.steps, aborts=given.abort))


if __name__ == "__main__":
    main()
