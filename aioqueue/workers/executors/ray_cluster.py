"""The Ray cluster: the connection to it, options of actors, and the meaning of Ray's errors.

Ray is imported on first use, and never started without the user's request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.base import extras
from aioqueue.errors import counted, exception_text

log: Final = logging.getLogger("aioqueue")

_OPTIONS: Final = frozenset(
    {
        "accelerator_type",
        "label_selector",
        "memory",
        "num_cpus",
        "num_gpus",
        "resources",
        "runtime_env",
        "scheduling_strategy",
    }
)
"""Options for the placement and resources of an actor. We choose Ray's other options."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_NODE_DIED: Final = "its node has died"
"""Ray's text about an actor whose node has died."""

_PROCESS_DIED: Final = "its worker process has died"
"""Ray's text about an actor that has died itself, or was killed."""


def required_ray() -> Any:
    """Import Ray.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "where='ray' and aioqueue.ray need Ray, which is not installed:"
            f" {extras.command_for('ray')}",
            name="ray",
        ) from error
    return ray


def connected() -> Any:
    """Return Ray, if this program is connected to a cluster; otherwise ``None``."""
    ray = required_ray()
    return ray if ray.is_initialized() else None


def session_of(ray: Any) -> tuple[str, str] | None:
    """Return the identity of the connection, which changes with `ray.shutdown` and `ray.init`;
    ``None`` if it has just ended."""
    try:
        # Not `ray.get_runtime_context`, which would then start a cluster.
        context = ray.runtime_context.get_runtime_context()
        return context.get_node_id(), context.get_job_id()
    except Exception:
        return None


def not_connected() -> RuntimeError:
    return RuntimeError(
        "this program is connected to no Ray cluster: call ray.init() first, which starts one on"
        " this machine, or ray.init(address='auto'), which connects to a running one"
    )


def checked_options(options: Any) -> dict[str, Any]:
    """Return the options of each actor: the user's and ours.

    Raises:
        InvalidArgumentError: there is no such option, or users may not choose it.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgumentError(
            f"ray: got {options!r}; expected a mapping of options for each actor, such as"
            " {'num_cpus': 2}"
        )
    given = dict(options or {})
    unknown = sorted(str(name) for name in given if name not in _OPTIONS)
    if unknown:
        raise InvalidArgumentError(
            f"ray: got {counted(len(unknown), 'option')} that cannot be given: "
            f"{', '.join(unknown)}; expected some of {', '.join(sorted(_OPTIONS))}"
        )
    # We restart lost actors ourselves, because we know their items; and they need no names.
    return {"num_cpus": 1, **given, "max_restarts": 0, "max_task_retries": 0}


def is_loss(error: BaseException) -> bool:
    """Return whether an actor or its result is lost, rather than a failure of the call."""
    exceptions = required_ray().exceptions
    return isinstance(
        error,
        exceptions.RayActorError
        | exceptions.ObjectLostError
        | exceptions.NodeDiedError
        | exceptions.WorkerCrashedError,
    )


def was_refused(error: BaseException | None) -> bool:
    """Return whether an actor ended because it could not begin, as any other one would."""
    return bool(getattr(error, "actor_init_failed", False))


def is_own_death(error: BaseException | None) -> bool:
    """Return whether an actor has died itself, maybe because of its item, and not with its node,
    which can have any reason."""
    is_actor_error = isinstance(error, required_ray().exceptions.RayActorError)
    return (
        is_actor_error and not getattr(error, "preempted", False) and _NODE_DIED not in str(error)
    )


def plain(text: str) -> str:
    """Return a text of Ray without its terminal colours."""
    return _COLOUR.sub("", text)


def why_failed(error: BaseException) -> str:
    """Return why an actor's call failed, without Ray's traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return plain(exception_text(cause))
    lines = [line.strip() for line in plain(str(error)).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def why_lost(error: BaseException | None) -> str:
    """Return what happened to an actor, in a few words instead of Ray's hundred."""
    text = plain(str(error))
    if _NODE_DIED in text:
        return "was lost with its node"
    if _PROCESS_DIED in text:
        return "has died: its process was killed, or has crashed"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"is lost ({type(error).__name__}: {first[:200]})"
