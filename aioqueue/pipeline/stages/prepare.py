"""`prepare`: workers call a function for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from aioqueue import sync
from aioqueue.base.arguments import checked_count, function_name, is_async, makes_several
from aioqueue.base.hints import unexpected_keyword
from aioqueue.pipeline.nodes.node import Node
from aioqueue.pipeline.nodes.state_fields import WORKERS, Fields, worker_fields
from aioqueue.pipeline.stages.base import BaseStage, BuildContext
from aioqueue.workers.calls import takes_rng
from aioqueue.workers.options import PrepareOptions
from aioqueue.workers.runner import prepare_items


@dataclass(frozen=True)
class Prepare(BaseStage):
    """Calls a function with every row, on workers."""

    name: ClassVar[str] = "prepare"
    state_fields: ClassVar[Fields] = WORKERS
    function: Callable[..., Any]
    buffer_size: int | None
    options: dict[str, Any]

    def __post_init__(self) -> None:
        unknown = self.options.keys() - PrepareOptions.__optional_keys__
        if unknown:
            known = ("function", "buffer_size", *PrepareOptions.__optional_keys__)
            raise unexpected_keyword(self.name, min(unknown), known, "inputs")
        if self.buffer_size is not None:
            checked_count(self.buffer_size, "buffer_size", least=1)
        # A run would check the options, too. But the traceback should lead to the user's line that
        # adds this stage.
        prepare_items((), self.function, into=sync.FIFOQueue(1), **self.options)

    def details(self) -> str:
        options = self.options
        where = options.get("where", "auto")
        if where == "auto":
            where = "task" if is_async(self.function) else "thread"
        count = options.get("workers", 4)
        plural = {"process": "processes"}.get(where, f"{where}s")
        parts = [function_name(self.function), f"on {count} {where if count == 1 else plural}"]
        if not options.get("ordered", True):
            parts.append("unordered")
        if options.get("autotune"):
            parts.append("tuned while it runs")
        if options.get("rate") is not None:
            whose = " for each key" if options.get("concurrency_key") else ""
            parts.append(f"(at most {options['rate']}{whose})")
        if options.get("on_error", "stop") != "stop":
            parts.append(f"on_error={options['on_error']!r}")
        return " ".join(parts)

    def node(self, upstream: Node, building: BuildContext) -> Node:
        options = {"ordered": True, "seed": building.seed("prepare"), **self.options}
        if options["seed"] is None:
            del options["seed"]
        buffer_size = self.buffer_size or building.buffer_size()
        return building.workers(upstream, self.function, buffer_size=buffer_size, options=options)

    def fingerprint(self) -> dict[str, Any]:
        seed = self.options.get("seed")
        own = {} if seed is None else {"seed": seed}
        return own if self.options.get("ordered", True) else {"ordered": False, **own}

    def is_random(self) -> bool:
        return takes_rng(self.function)

    def worker_function(self) -> Callable[..., Any]:
        return self.function

    def keeps_rows_apart(self) -> bool:
        return not makes_several(self.function)

    def without_quarantine(self) -> BaseStage:
        return replace(self, options={**self.options, "quarantine": None})

    @classmethod
    def why_inelastic(cls, arguments: Mapping[str, Any]) -> str | None:
        return None

    @classmethod
    def blank_entry(cls, arguments: Mapping[str, Any], *, is_padded: bool) -> dict[str, Any]:
        return worker_fields(super().blank_entry(arguments, is_padded=is_padded), arguments)

    def may_skip(self) -> bool:
        return bool(self.options.get("on_error", "stop") != "stop")

    def length(self, rows: int | None) -> int | None:
        is_other = makes_several(self.function) or self.options.get("drop_none")
        return None if is_other else rows
