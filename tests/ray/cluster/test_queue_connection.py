"""Without a connection, or after its end, every call raises an error that names the queue.

All of it runs in one program on a cluster of its own, since this program loses its connection.
"""

from __future__ import annotations

from tests.kit import clusters
from tests.ray.marks import MARKS

pytestmark = MARKS

CUT_OFF = """
import os
import threading
import time

import aioqueue
import aioqueue.ray
from aioqueue import WorkerDiedError
from aioqueue.inputs import numbers
from tests.kit import clusters


def say(what, call):
    try:
        call()
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        print(f"{what}: {type(error).__name__}: {error}", flush=True)


def forked(what, call):
    child = os.fork()
    if not child:
        say(what, call)
        os._exit(0)
    os.waitpid(child, 0)


def slow(number):
    if number > 3:
        time.sleep(3600)
    return number


say("a coordinator nowhere", lambda: aioqueue.ray.Coordinator("nowhere"))
say("a queue nowhere", lambda: aioqueue.ray.FIFOQueue("nowhere", 4))
with clusters.one_node(2) as ray:
    coord = aioqueue.ray.Coordinator("cut off").sync
    queue = aioqueue.ray.FIFOQueue("cut off", 4).sync
    waiting = threading.Thread(target=say, args=("a dequeue that waits", queue.dequeue))
    waiting.start()
    while not queue.statistics().waiting_dequeues:
        pass
    forked("a queue in a child", lambda: queue.enqueue(1))
    forked("a coordinator in a child", coord.request_stop)
    # One worker, which has begun when the first example is there; another one may not have.
    examples = iter(numbers(100).prepare(slow, where="ray", workers=1, ordered=True))
    next(examples)
waiting.join()
say("an enqueue", lambda: queue.enqueue(1))
coord.wait_for_stop()
say("a join", coord.join)
say("a prepare", lambda: list(examples))
assert not ray.is_initialized()
"""

ENDED = "has ended: ray.shutdown() was called"
FORKED = "belongs to the process that this one was forked from"
NOWHERE = "connected to no Ray cluster"
ERRORS = {
    "a coordinator nowhere": ("RuntimeError", NOWHERE),
    "a queue nowhere": ("RuntimeError", NOWHERE),
    "a queue in a child": ("RuntimeError", FORKED),
    "a coordinator in a child": ("RuntimeError", FORKED),
    "a dequeue that waits": ("WorkerDiedError", ENDED),
    "an enqueue": ("WorkerDiedError", ENDED),
    "a join": ("WorkerDiedError", "ray.shutdown() was called"),
    "a prepare": ("WorkerDiedError", ENDED),
}


def test_a_connection_that_ends_raises_an_error() -> None:
    lines = clusters.run_program(CUT_OFF)
    assert [line.split(":")[0] for line in lines] == list(ERRORS)
    for line, (kind, text) in zip(lines, ERRORS.values(), strict=True):
        assert f": {kind}: " in line
        assert text in line
