"""What a job asks of whatever runs its function: tasks, threads, processes, interpreters."""

from __future__ import annotations

from typing import Protocol

from aioqueue.arguments import EnqueueOp

__all__ = ("Executor",)


class Executor(Protocol):
    """Runs the function of one `Job` for its items, in one kind of place.

    Everything that decides is in the job: what a failure means, what may come in, in which order
    examples go on, when it is over. An executor moves items from the source to the function, and
    what comes back to the queue; and it tells the job what happens. To add one costs a class in a
    file of its own, and a line in the table of `aioqueue.inputs.prepare.executors`. It promises:

    **Its workers.** `enqueue_ops` gives one op for each worker of the job (``job.count``), and as
    many others as it needs beside them, to take from the source for instance. An op is called once
    and is the whole life of its worker: it begins with `Job.enter` and ends by raising what
    `Job.leave` returns, whatever has happened in between. (The others only raise:
    `Job.nothing_more` when there is nothing more to do.) Plain functions run on threads, coroutine
    functions as tasks of one event loop.

    **Every item once.** An item is counted by ``Window.enter`` before it is taken from the source.
    From then on the executor has it on its books until it has become a `Prepared`, which is given
    to `Job.made` and, when its examples are in the queue, to `Job.left`; exactly once, also if a
    process or a machine that had the item is lost and it is prepared again. No example is enqueued
    before it is certain that the item is not prepared once more.

    **Failures.** What the function raises is a matter for `Job.failure_of_item` and then for
    `Progress.failed`, which says whether and when the item is tried again; what the source raises
    for `Job.source_raised`; what the queue raises for `Job.not_enqueued`. Failures that came from
    elsewhere have the remote traceback as their cause. The loss of what runs the function is no
    failure of an item, unless it is to blame for it again and again.

    **More and fewer workers.** The first op is that of a worker, and may be called more often, or
    end before the others: a worker asks `Job.dismiss` whenever it has no item, and before it waits
    for one.

    **The stop.** There is one way in which it comes, for whatever reason: the job calls `stop`, in
    any thread. Then no worker takes another item, and those that wait (for the source, for room,
    for a place, for another try, for the queue, for an answer) end at once, by
    `Job.nothing_more`; so do remote calls that can be ended. Only a plain function that runs on a
    thread of ours is waited for. Nothing polls.

    **The drain.** The source ends at once, as far as the job is concerned (``job.source_ended``),
    and `room_came` tells it: whoever waits for room looks again. Where that must not come from any
    thread, because the workers are tasks of a loop, the executor sets ``job.soon`` before they take
    anything.

    **Per-key limits.** If the job has a ``key_limit``, what is sent out has been admitted by it,
    one item at a time for each worker, and gives its place back when its outcome is there:
    `ThreadInbox` does that for executors whose workers are threads.

    `ThreadSource`, `ThreadDelivery` and `WorkerThreads` have what is common to executors that talk
    to the place of the function through threads here, one each; with them an executor writes down
    only how an item gets there and its outcome back.
    """

    def enqueue_ops(self) -> list[EnqueueOp]:
        """The workers, as a `QueueRunner` wants them."""

    def stop(self) -> None:
        """End whatever the workers wait for. Called in any thread or signal handler, at any time,
        and more than once; does not wait, and does not raise."""

    def room_came(self) -> None:
        """One more item may come in, if ``job.is_room_awaited`` says that this is waited for; or
        none will any more; or an item has left after the source has ended, perhaps the last one.
        Called by a worker, or where ``job.soon`` makes calls, under the lock of the job: does not
        wait."""

    def resized(self) -> None:
        """There are to be more or fewer workers (``job.count``): those that wait for an item, or
        for room, ask `Job.dismiss` whether they are to leave; or there is room now. Called in any
        thread, under the lock of the job: does not wait."""

    def end(self) -> BaseException | None:
        """The last worker is leaving: let go of everything. Returns what has failed in that."""
