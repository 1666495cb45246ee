"""What all worker processes do: read the parent's messages, unpickle the function, and reply.

The main thread works. A second thread reads the pipe and never waits for anything else. So the
parent need not wait for a busy worker, and they cannot wait for each other. When the parent is
gone, even killed, the worker ends at once, whatever it is doing. (`fork_server.spawn` handles calls
that hold the GIL, and signals.)
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

from aioqueue.processes.channel import Channel
from aioqueue.processes.failures import message_of_failure
from aioqueue.processes.fork_server.bootstrap import PARENT_DIED


class Ready(NamedTuple):
    """The first reply of a worker: it can call the function, or not."""

    refusal: bytes | None = None
    """Why it cannot, as a message."""


Messages = SimpleQueue[bytes | bytearray]
"""The parent's messages: the pickled function, then work. An empty one ends the worker."""


def read_messages(receive: Callable[[], bytes | bytearray]) -> Messages:
    """Read the parent's messages in a thread from now on, until the empty one.

    Args:
        receive: waits for the next message.
    """
    messages: Messages = SimpleQueue()
    threading.Thread(target=_read_into, args=(messages, receive), daemon=True).start()
    return messages


def _read_into(messages: Messages, receive: Callable[[], bytes | bytearray]) -> None:
    message: bytes | bytearray = b"start"
    while message:
        try:
            message = receive()
        except (EOFError, OSError):
            # Not by an exception: the main thread may be in a call that never returns, and it would
            # continue with work that no caller waits for.
            os._exit(PARENT_DIED)
        messages.put(message)


def reply(channel: Channel, answer: object) -> None:
    """Send a reply. If the parent is gone, end the process."""
    try:
        channel.send(pickle.dumps(answer, 5))
    except OSError:
        os._exit(PARENT_DIED)


def unpickled_function(channel: Channel, messages: Messages) -> Any:
    """Unpickle the function, the first message, and reply that the worker is ready.

    Returns:
        The function; ``None`` if it cannot be unpickled here, which the reply then says.
    """
    try:
        function = pickle.loads(messages.get())
    except Exception as error:
        reply(channel, Ready(message_of_failure(error)))
        return None
    reply(channel, Ready())
    return function
