"""Programs of a coordinator and threads that stop, fail and come too late."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker

__all__ = ("COORDINATOR",)

HELPERS = (
    "import threading",
    "gate = threading.Event()",
    """\
def report(error):
    try:
        raise error
    except Exception as caught:
        coord.request_stop(caught)""",
    """\
def report_tuple(error):
    try:
        raise error
    except Exception:
        coord.request_stop(sys.exc_info())""",
    """\
def guarded(error):
    with coord.stop_on_exception():
        raise error""",
    """\
def start(name, work):
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    threads.append(thread)
    settle()""",
    "threads = []",
)
ERRORS = (
    "ValueError('one')", "ValueError('two')", "KeyError('three')", "RuntimeError('four', 4)",
    "tf.errors.OutOfRangeError(None, None, 'the end')",
    "tf.errors.CancelledError(None, None, 'cancelled')", "StopIteration()",
)  # fmt: skip
WORK = (
    "coord.wait_for_stop", "coord.wait_for_stop", "lambda: None", "gate.wait",
    "lambda: guarded({})", "lambda: report({})", "lambda: (coord.wait_for_stop(), report({}))",
    "lambda: (coord.wait_for_stop(), guarded({}))", "lambda: (gate.wait(), guarded({}))",
)  # fmt: skip
ACTIONS = {
    "start": 6, "stop": 3, "report": 3, "tuple": 1, "guarded": 2, "clear": 0.7, "join": 5,
    "look": 5, "raise": 1, "gate": 1, "loop": 1,
}  # fmt: skip


def coordinator(draw: random.Random) -> list[str]:
    """Threads, reports and joins."""
    clean = draw.choice(
        ("", "", "", "[ValueError]", "clean_stop_exception_types=(KeyError, ValueError)", "[]")
    )
    lines = [f"coord = tf.train.Coordinator({clean})", *HELPERS]
    for number in range(draw.randint(4, 14)):
        error = draw.choice(ERRORS)
        action = draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        if action == "start":
            work = draw.choice(WORK).format(error)
            lines.append(f"start('t{number}', {work})")
            if draw.random() < 0.4:
                lines.append("if threads: coord.register_thread(threads[-1])")
        elif action == "join":
            lines.append(_join(draw))
        elif action == "loop":
            lines.append(
                "looper = tf.train.LooperThread.loop(coord, None,"
                " lambda left: left.pop() if left else coord.request_stop(), [[1, 2, 3]])"
            )
            lines.append("settle()")
        else:
            lines.append(
                {
                    "stop": "coord.request_stop()",
                    "report": f"report({error})",
                    "tuple": f"report_tuple({error})",
                    "guarded": f"guarded({error})",
                    "clear": "coord.clear_stop()",
                    "look": draw.choice(
                        (
                            "say(coord.should_stop())",
                            "say(coord.joined)",
                            "say(coord.wait_for_stop(0.001))",
                            "say([thread.is_alive() for thread in threads])",
                        )
                    ),
                    "raise": "coord.raise_requested_exception()",
                    "gate": "gate.set()",
                }[action]
            )
            lines.append("settle()")
    lines += ["gate.set()", "coord.request_stop()", "settle()"]
    return lines


def _join(draw: random.Random) -> str:
    """A join that TensorFlow does not wait a second for: after a stop, with little patience."""
    options = [draw.choice(("threads", "threads", ""))]
    options.append(f"stop_grace_period_secs={draw.choice((0.01, 0.02, 0, -1))}")
    if draw.random() < 0.3:
        options.append("ignore_live_threads=True")
    return f"if coord.should_stop(): coord.join({', '.join(filter(None, options))})"


COORDINATOR: dict[str, Maker] = {"Coordinator": coordinator}
"""The kinds of programs of this module by name."""
