"""A small stand-in for vLLM and SGLang: it streams completions, and takes weights meanwhile.

Each token is the version of the weights that have generated it, ``"v3 "`` say, so that a test sees
what a client can only note. A completion has as many tokens as its seed says; a request whose
prompt ends with tokens continues there.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Kind = Literal["vllm", "sglang"]
TOKEN_SECONDS = 0.001


def n_tokens(seed: int) -> int:
    """Return how many tokens a completion with this seed has in all."""
    return 1 + seed % 50


class FakeServer:
    """The server of one kind.

    Attributes:
        url: where it listens.
        prompts: of all requests for completions, in order.
        loaded: the weights that it has loaded, in order.
        broken: weights that cannot be loaded.
        version: how often it has loaded weights.
        is_paused: whether it is.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.url = ""
        self.prompts: list[str] = []
        self.loaded: list[str] = []
        self.broken: set[str] = set()
        self.is_paused = False
        self._controlled = asyncio.Condition()
        self._aborts = 0

    @property
    def version(self) -> int:
        return len(self.loaded)

    def app(self) -> Starlette:
        paths = {
            "vllm": ("/pause", "/collective_rpc", "/resume"),
            "sglang": ("/pause_generation", "/update_weights_from_disk", "/continue_generation"),
        }[self.kind]
        controls = zip(paths, (self._pause, self._load, self._resume), strict=True)
        routes = [Route(path, function, methods=["POST"]) for path, function in controls]
        return Starlette(
            routes=[Route("/v1/completions", self._complete, methods=["POST"]), *routes]
        )

    async def _complete(self, request: Request) -> Response:
        wanted = await request.json()
        assert wanted["stream"]
        assert wanted["max_tokens"] > 0
        self.prompts.append(wanted["prompt"])
        return StreamingResponse(self._tokens(wanted), media_type="text/event-stream")

    async def _tokens(self, wanted: dict[str, Any]) -> AsyncIterator[str]:
        generated = wanted["prompt"].partition("Answer: ")[2].count("v")
        aborts = self._aborts
        for number in range(1, wanted["max_tokens"] + 1):
            await asyncio.sleep(TOKEN_SECONDS)
            async with self._controlled:
                await self._controlled.wait_for(lambda: not self.is_paused or self._aborts > aborts)
            if self._aborts > aborts:
                yield event("", [], "abort")
                break
            is_last = generated + number == n_tokens(wanted["seed"])
            reason = "stop" if is_last else "length" if number == wanted["max_tokens"] else None
            yield event(f"v{self.version} ", [-0.5], reason)
            if is_last:
                break
        yield "data: [DONE]\n\n"

    async def _pause(self, request: Request) -> Response:
        if self.kind == "vllm":
            mode = request.query_params["mode"]
            assert mode in ("keep", "abort")
        else:
            mode = (await request.json())["mode"]
            assert mode in ("retract", "abort")
        async with self._controlled:
            self.is_paused = True
            self._aborts += mode == "abort"
            self._controlled.notify_all()
        return JSONResponse({})

    async def _load(self, request: Request) -> Response:
        content = await request.json()
        assert self.is_paused
        if self.kind == "vllm":
            assert content["method"] == "reload_weights"
            weights = content["kwargs"]["weights_path"]
        else:
            weights = content["model_path"]
        if weights in self.broken:
            return JSONResponse({"message": "the weights are torn"}, status_code=500)
        self.loaded.append(weights)
        return JSONResponse({"success": True})

    async def _resume(self, request: Request) -> Response:
        async with self._controlled:
            self.is_paused = False
            self._controlled.notify_all()
        return JSONResponse({})


def event(text: str, logprobs: list[float], reason: str | None) -> str:
    choice = {
        "index": 0,
        "text": text,
        "logprobs": {"token_logprobs": logprobs} if logprobs else None,
        "finish_reason": reason,
    }
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


@contextmanager
def serving(kind: Kind) -> Iterator[FakeServer]:
    """Serve on a thread, for a test."""
    fake = FakeServer(kind)
    options: dict[str, Any] = {"log_level": "warning", "ws": "none", "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(fake.app(), **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield fake
        finally:
            server.should_exit = True
            thread.join(20)
