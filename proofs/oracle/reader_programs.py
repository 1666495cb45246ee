"""Programs of readers, which take names of files from a queue."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker

TEXTS = (
    b"", b"one\n", b"one\ntwo", b"one\r\n\r\ntwo\rthree\n", b"\n\n", b"head\na\nb\nc\n",
    b"0123456789abcdef", b"0123456",
)  # fmt: skip
KINDS = (
    *("TextLineReader", "TextLineReader", "FixedLengthRecordReader"),
    *("WholeFileReader", "IdentityReader", "TFRecordReader"),
)


def reader(draw: random.Random) -> list[str]:
    """A reader of one kind, and files or work items of any content."""
    kind = draw.choice(KINDS)
    lines = []
    count = draw.randint(1, 4)
    names = []
    for at in range(count):
        names.append(f"folder + '/f{at}'")
        if kind == "TFRecordReader" and draw.random() < 0.8:
            records = [draw.choice(TEXTS) for _ in range(draw.randint(0, 3))]
            lines.append(
                f"with tf.python_io.TFRecordWriter(folder + '/f{at}') as w:"
                f" [w.write(record) for record in {records}]"
            )
        elif draw.random() < 0.95:
            lines.append(
                f"with open(folder + '/f{at}', 'wb') as file: file.write({draw.choice(TEXTS)!r})"
            )
    options = ""
    if kind == "TextLineReader" and draw.random() < 0.5:
        options = f"skip_header_lines={draw.choice((0, 1, 2))}"
    if kind == "FixedLengthRecordReader":
        options = f"{draw.choice((1, 3, 4))}"
        if draw.random() < 0.5:
            options += f", header_bytes={draw.choice((0, 1, 5))}"
        if draw.random() < 0.3:
            options += f", footer_bytes={draw.choice((0, 2))}"
        if draw.random() < 0.3:
            options += f", hop_bytes={draw.choice((1, 2, 6))}"
    lines += [
        "q = tf.FIFOQueue(20, [tf.string], [[]])",
        f"fill = q.enqueue_many([[{', '.join(names)}]])",
        "close = q.close()",
        f"r = tf.{kind}({options})",
        "item = r.read(q)",
        f"items = r.read_up_to(q, {draw.choice((0, 1, 2, 5))})",
        "records = r.num_records_produced()",
        "units = r.num_work_units_completed()",
        "reset = r.reset()",
        "state = r.serialize_state()",
        "saved = tf.placeholder(tf.string, [])",
        "restore = r.restore_state(saved)",
        "size = q.size()",
        "session()",
    ]
    if draw.random() < 0.95:
        lines.append("here(fill)")
    if draw.random() < 0.8:
        lines.append("here(close)")
    states = (b"", b"\x08\x01\x10\x01\x18\x01\x22\x01A", b"\x08\x01\x10\x02", b"bad")
    for _ in range(draw.randint(4, 16)):
        action = draw.choices(
            ("item", "items", "records", "units", "size", "reset", "state", "restore"),
            (8, 3, 2, 2, 1, 0.5, 0.5, 0.5),
        )[0]
        if action == "restore":
            lines.append(f"go(restore, {{saved: {draw.choice(states)!r}}})")
        else:
            lines.append(f"go({action})")
    return lines


READERS: dict[str, Maker] = {"reader": reader}
"""The kinds of programs of this module by name."""
