"""Fifteen programs that hang, each with a coordinator that has a watchdog, and who is to blame."""

from __future__ import annotations

from typing import Final

__all__ = ("HANGS", "program_of")

HANGS: Final = {
    "a dead read": (
        "in stuck: wait()",
        """
def stuck(number):
    if number == 3:
        wait()
    return number
run(prepare(range(100), stuck, into=examples, workers=2, ordered=True))
thread(lambda: [examples.dequeue() for _ in range(100)])
""",
    ),
    "a cycle of locks": (
        "in stuck: locks[1 - number].acquire()",
        """
locks, have_one = (threading.Lock(), threading.Lock()), threading.Barrier(2)
def stuck(number):
    locks[number].acquire()
    have_one.wait()
    locks[1 - number].acquire()
run(prepare([0, 1], stuck, into=examples, workers=2))
thread(examples.dequeue)
""",
    ),
    "a full queue that nobody empties": (
        "nobody has ever waited to take from it",
        """
run(sync.QueueRunner(examples, lambda: examples.enqueue(1)))
""",
    ),
    "a runner that has ended": (
        "its runner has ended: OutOfRangeError: no more files, and has not closed it",
        """
def ends():
    raise aioqueue.OutOfRangeError("no more files")
run(sync.QueueRunner(examples, ends, close_op=lambda: None))
thread(examples.dequeue)
""",
    ),
    "a stopped process": (
        "is stopped (SIGSTOP)",
        """
from tests.kit import functions
run(prepare([0, 1], functions.stops_its_process, into=examples, workers=1, where="process"))
thread(lambda: [examples.dequeue() for _ in range(2)])
""",
    ),
    "a forgotten close": (
        "who did, has ended and has not closed it",
        """
producer = thread(lambda: [examples.enqueue(number) for number in range(20)])
while not examples.statistics().waiting_enqueues:
    pass  # it waits for room, and so is known as a producer
run(sync.QueueRunner(sync.FIFOQueue(1), lambda: examples.dequeue()))
producer.join()
""",
    ),
    "a consumer that is gone": (
        "who took from it last, has ended",
        """
trainer = thread(examples.dequeue)
run(sync.QueueRunner(examples, lambda: examples.enqueue(1)))
trainer.join()
""",
    ),
    "a cycle of two queues": (
        "these wait for each other",
        """
def twice(number):
    yield number
    yield number
back = sync.FIFOQueue(2, name="back")
examples.enqueue(0)
run(prepare(examples, twice, into=back, workers=1))
run(prepare(back, twice, into=examples, workers=1))
""",
    ),
    "two queues in another order": (
        "wait for each other",
        """
labels = sync.FIFOQueue(2, name="labels")
def fill():
    for _ in range(9):
        examples.enqueue(0)
    labels.enqueue(0)
coord.register(thread(fill))
coord.register(thread(lambda: (labels.dequeue(), examples.dequeue())))
""",
    ),
    "a blocked source": (
        "in stuck: wait()",
        """
def stuck():
    yield 1
    wait()
run(prepare(stuck(), float, into=examples, workers=2))
thread(lambda: [examples.dequeue() for _ in range(2)])
""",
    ),
    "a lost wake of the user's": (
        "in stuck: condition.wait()",
        """
condition = threading.Condition()
def stuck():
    with condition:
        condition.wait()
run(sync.QueueRunner(examples, stuck))
thread(examples.dequeue)
""",
    ),
    "an exhausted limit": (
        "in stuck: wait()",
        """
def stuck(url):
    if url == "a/0":
        wait()
    return url
urls = ["a/0", "a/1", "a/2"]
one = {"concurrency_key": lambda url: url[0], "max_per_key": 1}
run(prepare(urls, stuck, into=examples, workers=2, **one))
thread(examples.dequeue)
""",
    ),
    "a batcher": (
        "in stuck: wait()",
        """
def stuck(batch):
    wait()
ask = sync.Batcher(stuck, watchdog=0.1)
ask.__enter__()
thread(lambda: ask(1))
""",
    ),
    "the loop's own thread": (
        "in stuck: wait()",
        """
def stuck(number):
    wait()
epochs = items(range(9)).prepare(abs).filter(stuck).epochs(1, watchdog=0.1)
thread(lambda: [list(epoch) for epoch in epochs])
""",
    ),
    "a join": (
        "in stuck: wait()",
        """
def stuck():
    wait()
coord.register(thread(stuck))
thread(coord.join)
""",
    ),
}
"""By what hangs: the sentence of the first culprit, and the program."""

_BEGINS: Final = """
import sys, threading, time
import aioqueue
from aioqueue import sync
from aioqueue.inputs import items, prepare

wait = threading.Event().wait
examples = sync.FIFOQueue(2, name="examples")
coord = sync.Coordinator(watchdog=0.1)
run = coord.start

def thread(call):
    one = threading.Thread(target=call, daemon=True)
    one.start()
    return one
"""

_ENDS: Final = """
def says():
    found = aioqueue.explain().culprits
    return found and {words!r} in found[0].sentence

while not says():
    time.sleep(0.01)
print("ready", flush=True)
sys.stdin.read()
"""


def program_of(what: str) -> str:
    """A program that hangs so, and says ``ready`` once its own call of `explain` names who is to
    blame first."""
    words, hang = HANGS[what]
    return _BEGINS + hang + _ENDS.format(words=words)
