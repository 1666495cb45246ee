"""Programs of queue runners: what they put in, how they end, and what is told of it."""

from __future__ import annotations

import random

from proofs.oracle.program import Maker

__all__ = ("RUNNERS", "consumed")


def runner(draw: random.Random) -> list[str]:
    """One or two runners and a consumer."""
    limit = draw.choice((0, 1, 3, 5, 9))
    lines = [
        "counter = tf.Variable(0, dtype=tf.int32)",
        f"counted = counter.count_up_to({limit})",
        f"q = tf.FIFOQueue({draw.choice((1, 2, 4, 20))}, [tf.int32], [[]])",
    ]
    # Several threads that count would come in any order.
    lines.append(
        draw.choice(
            (
                "puts = [q.enqueue(counted)]",
                "puts = [q.enqueue(counted)]",
                "puts = [q.enqueue_many([tf.stack([counted, counted * 10])])]",
                "puts = [q.enqueue(5)] * 2",
                "puts = [q.enqueue(5), q.enqueue([5]), q.enqueue(5)]",
                "puts = [counted]",
                "puts = []",
            )
        )
    )
    options = draw.choice(
        (
            "",
            "",
            "",
            ", queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError)",
            ", queue_closed_exception_types=(tf.errors.CancelledError,)",
            ", cancel_op=q.close()",
            ", close_op=tf.no_op()",
        )
    )
    lines += [
        f"runner = tf.train.QueueRunner(q, puts{options})",
        "say(runner.name)",
        "tf.train.add_queue_runner(runner)",
    ]
    last = "q"
    # What an error in the one lets through to the other is chance.
    if draw.random() < 0.5 and not options:
        last = "q2"
        lines += [
            f"q2 = tf.FIFOQueue({draw.choice((1, 3, 10))}, [tf.int32], [[]])",
            "runner2 = tf.train.QueueRunner(q2, [q2.enqueue(q.dequeue() + 100)])",
            "tf.train.add_queue_runner(runner2)",
        ]
    lines += [
        f"take = {last}.dequeue()",
        f"batch = {last}.dequeue_many({draw.randint(1, 4)})",
        f"upto = {last}.dequeue_up_to({draw.randint(1, 4)})",
        f"size = {last}.size()",
        f"closed = {last}.is_closed()",
        "session()",
    ]
    if draw.random() < 0.85:
        lines.append("here(tf.global_variables_initializer())")
    if draw.random() < 0.75:
        lines.append("coord = tf.train.Coordinator()")
        lines.append("threads = tf.train.start_queue_runners(sess, coord)")
    else:
        lines.append("threads = tf.train.start_queue_runners(sess)")
    lines += ["settle()", "say([thread.name for thread in threads])"]
    for _ in range(draw.randint(3, 10)):
        lines.append(_action(draw))
        lines.append("settle()")
    if (
        draw.random() < 0.2
        and last == "q"
        and not any("5" in line for line in lines if "puts =" in line)
    ):
        # Of several threads it is chance which is cancelled first.
        lines += ["sess.close()", "settle()"]
    return [*lines, *_ending(draw)]


def _action(draw: random.Random) -> str:
    return draw.choice(
        (
            "go(take)",
            "go(take)",
            "go(batch)",
            "go(upto)",
            "here(size)",
            "here(size)",
            "here(closed)",
            "say([type(error).__name__ for error in runner.exceptions_raised])",
            "say(len(runner.create_threads(sess)))" if draw.random() < 0.3 else "here(size)",
            "coord.request_stop()" if draw.random() < 0.3 else "here(size)",
        )
    )


def _ending(draw: random.Random) -> list[str]:
    return [
        "coord.request_stop()", "settle()", "here(closed)",
        "coord.join(threads, stop_grace_period_secs=0.05)", "say(coord.joined)",
        "say([type(error).__name__ for error in runner.exceptions_raised])",
        "say([thread.is_alive() for thread in threads])", "here(size)",
    ]  # fmt: skip


def consumed(draw: random.Random, fetches: list[str], most: int) -> list[str]:
    """Lines that start all runners, fetch for a while, stop, and join.

    Args:
        draw: where choices come from.
        fetches: what may be fetched.
        most: how often, at most.
    """
    lines = ["session()"]
    if draw.random() < 0.95:
        lines.append("here([tf.global_variables_initializer(), tf.local_variables_initializer()])")
    lines += [
        "coord = tf.train.Coordinator()",
        "threads = tf.train.start_queue_runners(sess, coord)",
        "settle()",
        "say([thread.name for thread in threads])",
    ]
    for _ in range(draw.randint(2, most)):
        lines += [f"go({draw.choice(fetches)})", "settle()"]
    if draw.random() < 0.7:
        lines += ["coord.request_stop()", "settle()"]
        lines.append("coord.join(threads, stop_grace_period_secs=0.05)")
    return lines


def monitored(draw: random.Random) -> list[str]:
    """A pipeline in a session that starts its runners, and tells when to stop."""
    epochs = draw.choice((1, 2, 3))
    lines = [
        f"q = tf.train.range_input_producer({draw.choice((1, 3, 4))}, {epochs}, shuffle=False)",
        f"b = tf.train.batch([q.dequeue()], {draw.choice((1, 2, 3))}"
        f"{draw.choice(('', ', allow_smaller_final_batch=True'))})",
        "bad = tf.train.limit_epochs(7, 2)",
        f"sess = tf.train.{draw.choice(('MonitoredSession', 'SingularMonitoredSession'))}()",
        "settle()",
    ]
    fetches = ("b", "b", "b", "[b]", "{'b': b}", "bad")
    for _ in range(draw.randint(2, 12)):
        lines.append(f"go({draw.choice(fetches)})")
        lines.append("settle()")
        if draw.random() < 0.4:
            lines.append("say(sess.should_stop())")
    return [*lines, "sess.close()", "say(sess.should_stop())", "sess.close()"]


RUNNERS: dict[str, Maker] = {"QueueRunner": runner, "MonitoredSession": monitored}
"""The kinds of programs of this module by name."""
