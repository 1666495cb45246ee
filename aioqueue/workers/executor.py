"""The interface of executors, which run a job's function in tasks, threads and so on."""

from __future__ import annotations

from typing import Protocol

from aioqueue.base.arguments import EnqueueOp


class Executor(Protocol):
    """Runs the function of one `Job` for its items, in one kind of worker.

    The job decides everything: what a failure means, how many items may be in flight, in which
    order examples are enqueued, and when it is over. An executor moves items from the source to the
    function and results to the queue, and reports to the job. To add an executor, write a class in
    a file of its own, and add a line to the table of `aioqueue.workers.executors.threads`. An
    executor promises:

    **Workers.** `enqueue_ops` returns one op for each worker of the job (``job.count``), and any
    number of helper ops, for example to read the source. An op is called once and is the whole life
    of its worker. It begins with `Job.enter` and ends by raising the result of `Job.leave`,
    whatever has happened in between. (Helpers only raise: `Job.nothing_more` when there is nothing
    more to do.) Plain functions run on threads, coroutine functions as tasks of one event loop.

    **Every item once.** ``Window.enter`` counts an item before it is taken from the source. From
    then on the executor keeps track of the item until it has become a `Prepared`. It passes that to
    `Job.made` and, when its examples are in the queue, to `Job.left`: exactly once, even if a
    process or machine with the item is lost and the item is prepared again. It enqueues no example
    as long as the item might be prepared once more.

    **Failures.** If the function raises, the executor calls `Job.failure_of_item` and then
    `Progress.failed`, which decides whether and when to retry the item. If the source raises, it
    calls `Job.source_raised`; if the queue raises, `Job.not_enqueued`. A failure from elsewhere has
    the remote traceback as its cause. The loss of a worker process is not a failure of an item,
    unless the item causes it again and again.

    **More and fewer workers.** The first op is that of a worker. It may be called more often, or
    end before the others. A worker calls `Job.dismiss` whenever it has no item, and before it waits
    for one.

    **The stop.** Every stop comes in one way: the job calls `stop`, in any thread. Then no worker
    takes another item. All that wait (for the source, for room, for a key's place, for a retry, for
    the queue, for an answer) end at once, with `Job.nothing_more`, and so do remote calls that can
    be ended. Only a plain function that runs on one of our threads is waited for. Nothing polls.

    **The drain.** For the job, the source ends at once (``job.source_ended``). `room_came` then
    makes the worker that waits for room look again. If the workers are tasks of a loop, which not
    every thread may wake, the executor sets ``job.soon`` before they take anything.

    **Per-key limits.** If the job has a ``key_limit``, every item that is sent out was admitted by
    it, one item at a time for each worker, and gives its place back when its outcome has arrived.
    `ThreadInbox` does that for executors whose workers are threads.

    `ThreadSource`, `ThreadDelivery` and `WorkerThreads` are the common parts of executors that use
    one thread here per worker. With them, an executor only implements how an item gets to the
    function and how its outcome comes back.
    """

    def enqueue_ops(self) -> list[EnqueueOp]:
        """Return the ops of the workers and helpers, for a `QueueRunner`."""

    def stop(self) -> None:
        """End all waits of the workers. Any thread or signal handler may call it, at any time and
        more than once. It neither waits nor raises."""

    def room_came(self) -> None:
        """Wake the worker that waits for room, if ``job.is_room_awaited``.

        Another item may come in now, or none ever will; or an item has left after the end of the
        source, perhaps the last one. A worker calls it, or ``job.soon``, under the job's lock. It
        does not wait."""

    def resized(self) -> None:
        """Wake the workers that wait for an item or for room, because their number (``job.count``)
        has changed: they call `Job.dismiss`, or there is room now. Any thread may call it, under
        the job's lock. It does not wait."""

    def end(self) -> BaseException | None:
        """Release everything, as the last worker leaves. Return what has failed in that."""
