"""Write down what TensorFlow does in random programs: ``python -m tests.compat.record_programs``.

It needs TensorFlow. `test_programs` holds the compat layer to what is written there: to random
programs of queues, runners, coordinators, inputs and sessions. The oracle makes them, and compares
any number of them where TensorFlow is installed.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from proofs.oracle.building_programs import BUILDING
from proofs.oracle.comparing import compare
from proofs.oracle.coordinator_programs import COORDINATOR
from proofs.oracle.input_programs import INPUTS
from proofs.oracle.libraries import theirs
from proofs.oracle.program import Program, made_from
from proofs.oracle.queue_programs import QUEUES
from proofs.oracle.runner_programs import RUNNERS
from proofs.oracle.session_programs import SESSIONS
from proofs.oracle.sharing_programs import SHARING
from proofs.oracle.stage import Compiled, play
from proofs.oracle.training_programs import TRAINING

RECORD = Path(__file__).with_name("program_record.json")
KINDS = {
    **QUEUES, **BUILDING, **SHARING, **COORDINATOR, **RUNNERS, **INPUTS, **SESSIONS, **TRAINING,
}  # fmt: skip
EACH = 16
"""How many programs of a kind are kept."""

TIMED = re.compile(r"pause\(\)|timeout|, 15\)")
"""What depends on how busy the machine is."""


def played(library: Any, lines: list[str]) -> list[Any]:
    """What a library does at each line of a program, as JSON has it."""
    with tempfile.TemporaryDirectory() as folder:
        seen = play(library, [Compiled(line) for line in lines], folder)
    plain: list[Any] = json.loads(json.dumps(seen).replace(folder, "FOLDER"))
    return plain


def recorded(program: Program) -> dict[str, Any] | None:
    """A program and what TensorFlow does; None if that is not always, and everywhere, the same."""
    lines = list(program.lines)
    if any(map(TIMED.search, lines)):
        return None
    verdict = compare(program)
    if verdict != type(verdict)():
        return None
    seen = played(theirs(), lines)
    if "DeadlineExceeded" in str(seen) or seen != played(theirs(), lines):
        return None
    return {"kind": program.kind, "seed": program.seed, "lines": lines, "seen": seen}


def main() -> None:
    """Record the first programs of each kind."""
    rows: list[str] = []
    for kind, maker in KINDS.items():
        seed, count = 0, 0
        while count < EACH and seed < 10 * EACH:
            seed += 1
            row = recorded(made_from(kind, maker, seed))
            if row is not None:
                rows.append(json.dumps(row))
                count += 1
        print(kind, count)
    RECORD.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
