"""All kinds of programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proofs.oracle.building_programs import BUILDING
from proofs.oracle.coordinator_programs import COORDINATOR
from proofs.oracle.dataset_programs import DATASETS
from proofs.oracle.example_programs import EXAMPLES
from proofs.oracle.graph_programs import GRAPHS
from proofs.oracle.image_programs import IMAGES
from proofs.oracle.input_programs import INPUTS
from proofs.oracle.op_programs import OPS
from proofs.oracle.program import Maker, Program, made_from
from proofs.oracle.queue_programs import QUEUES
from proofs.oracle.reader_programs import READERS
from proofs.oracle.runner_programs import RUNNERS
from proofs.oracle.session_programs import SESSIONS
from proofs.oracle.sharing_programs import SHARING
from proofs.oracle.sparse_programs import SPARSE
from proofs.oracle.text_programs import TEXTS
from proofs.oracle.training_programs import TRAINING

KINDS: dict[str, Maker] = {
    **QUEUES, **BUILDING, **SHARING, **COORDINATOR, **RUNNERS, **INPUTS, **READERS, **IMAGES, **OPS,
    **TEXTS, **SPARSE, **DATASETS, **GRAPHS, **SESSIONS, **TRAINING, **EXAMPLES,
}  # fmt: skip
"""What writes the programs of each kind."""


def chosen(parts: Sequence[str] | None) -> list[str]:
    """The names of kinds that contain one of some texts; all if there are no texts."""
    return [kind for kind in KINDS if not parts or any(part in kind for part in parts)]


def programs(count: int, seed: int, kinds: Sequence[str]) -> Iterator[Program]:
    """So many programs, one of each kind in turn.

    Args:
        count: how many.
        seed: of the first; the others count up from it.
        kinds: names of kinds.
    """
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield made_from(kind, KINDS[kind], seed + number)
