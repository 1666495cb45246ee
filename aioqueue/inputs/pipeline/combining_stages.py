"""The stages that combine several pipelines; `combining_nodes` has the nodes that do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from aioqueue import InvalidArgumentError
from aioqueue.arguments import checked_flag, function_name, is_async
from aioqueue.inputs.core.shuffling import checked_weights, resolved_seed
from aioqueue.inputs.pipeline.combining_nodes import ConcatNode, MixNode, Stop, Tokens, ZipNode
from aioqueue.inputs.pipeline.description import BasePipeline, BaseStage, BuildContext
from aioqueue.inputs.pipeline.node import Node
from aioqueue.inputs.pipeline.stages import ToDevice, as_pipeline, length_of_source

__all__ = ("CombiningStage", "Concat", "Mix", "Zip")


@dataclass(frozen=True)
class CombiningStage(BaseStage):
    """The base of stages that combine a pipeline with others."""

    others: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.others:
            raise InvalidArgumentError(
                "others: got none; expected a pipeline or source, or several"
            )
        for other in self.others:
            if any(isinstance(stage, ToDevice) for stage in as_pipeline(other).stages):
                raise InvalidArgumentError(
                    f"others: got {other!r}; expected `to_device` after `{self.name}`, for all of"
                    " them"
                )

    @property
    def own_seed(self) -> int | None:
        """The seed that the user gave; ``None`` if the pipeline's seed decides."""
        return None

    def branches(self) -> list[BasePipeline[Any]]:
        return [as_pipeline(other) for other in self.others]

    def _nodes(self, upstream: Node, building: BuildContext) -> list[Node]:
        return [upstream, *map(building.branch, self.branches())]

    def _lengths(self, rows: int | None) -> list[int] | None:
        """Return the number of rows of each pipeline; ``None`` unless all of them are known."""
        lengths = [rows, *map(length_of_source, self.others)]
        known = [length for length in lengths if length is not None]
        return known if len(known) == len(lengths) else None


@dataclass(frozen=True)
class Mix(CombiningStage):
    """Mixes in other pipelines."""

    name: ClassVar[str] = "mix"
    weights: Any
    seed: int | None
    stop: Stop
    tokens: Tokens | None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_weights(self.weights, len(self.others) + 1)
        resolved_seed(self.seed)
        if self.stop not in ("first", "all"):
            raise InvalidArgumentError(f"stop: got {self.stop!r}; expected 'first' or 'all'")
        if self.tokens is not None and (not callable(self.tokens) or is_async(self.tokens)):
            raise InvalidArgumentError(
                f"tokens: got {self.tokens!r}; expected a plain function that tells how many tokens"
                " an example has, as len does, or None"
            )

    @property
    def own_seed(self) -> int | None:
        return self.seed

    def function_name(self) -> str:
        return self.name if self.tokens is None else function_name(self.tokens)

    def details(self) -> str:
        weights = checked_weights(self.weights, len(self.others) + 1)
        shares = " : ".join(f"{weight / sum(weights):.3g}" for weight in weights)
        of = "" if self.tokens is None else f" of {function_name(self.tokens)}"
        return f"{shares}{of}, stop={self.stop!r}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        branches = self._nodes(upstream, building)
        weights = checked_weights(self.weights, len(branches))
        seed = building.seed("mix")
        seed = seed if self.seed is None else int(self.seed)
        return MixNode(branches, weights, seed, self.stop, self.tokens)

    def fingerprint(self) -> dict[str, Any]:
        weights = checked_weights(self.weights, len(self.others) + 1)
        found = {"weights": weights, "seed": self.seed, "stop": self.stop}
        return found if self.tokens is None else {**found, "tokens": True}

    def is_elastic(self) -> bool:
        return self.stop == "all"  # where the first ends depends on what each rank has drawn

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return sum(lengths) if lengths is not None and self.stop == "all" else None

    def depends_on_data(self) -> bool:
        return True  # a pipeline that is mixed in may skip items


@dataclass(frozen=True)
class Zip(CombiningStage):
    """Makes tuples of one example from each pipeline."""

    name: ClassVar[str] = "zip"
    strict: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_flag(self.strict, "strict")

    def details(self) -> str:
        return f"of {len(self.others) + 1}{' strict' if self.strict else ''}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ZipNode(self._nodes(upstream, building), strict=self.strict)

    def is_elastic(self) -> bool:
        return False  # what one pipeline has left on a rank may be another part than of another

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else min(lengths)


@dataclass(frozen=True)
class Concat(CombiningStage):
    """Continues with the examples of other pipelines, one pipeline after the other."""

    name: ClassVar[str] = "concat"

    def details(self) -> str:
        return f"of {len(self.others) + 1}"

    def node(self, upstream: Node, building: BuildContext) -> Node:
        return ConcatNode(self._nodes(upstream, building))

    def length(self, rows: int | None) -> int | None:
        lengths = self._lengths(rows)
        return None if lengths is None else sum(lengths)
