"""What we know of Ray: whether there is a cluster, which options actors have, what its errors mean.

Ray is imported when it is asked for, and never started behind the user's back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.checks import counted
from aioqueue.coordination.outcomes import said

__all__ = (
    "checked_options",
    "connected",
    "is_loss",
    "is_own_death",
    "log",
    "not_connected",
    "plain",
    "required_ray",
    "session_of",
    "was_refused",
    "why_failed",
    "why_lost",
)

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
"""What says where an actor runs and what it takes; the rest of Ray's options is ours to choose."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_NODE_DIED: Final = "its node has died"
"""What Ray says of an actor that did not die by itself."""

_PROCESS_DIED: Final = "its worker process has died"
"""What it says of one that did, or was killed."""


def required_ray() -> Any:
    """Ray.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "where='ray' and aioqueue.ray need Ray, which is not installed: pip install"
            " 'aioqueue[ray]'",
            name="ray",
        ) from error
    return ray


def connected() -> Any:
    """Ray, if this program is connected to a cluster; else ``None``."""
    ray = required_ray()
    return ray if ray.is_initialized() else None


def session_of(ray: Any) -> tuple[str, str] | None:
    """Which connection this is: another one after `ray.shutdown` and `ray.init`; ``None`` if it has
    just ended."""
    try:
        # Not `ray.get_runtime_context`, which would start a cluster then.
        context = ray.runtime_context.get_runtime_context()
        return context.get_node_id(), context.get_job_id()
    except Exception:
        return None


def not_connected() -> RuntimeError:
    """This program is connected to no cluster, and has to be."""
    return RuntimeError(
        "this program is connected to no Ray cluster: call ray.init() first, which starts one on"
        " this machine, or ray.init(address='auto'), which connects to the one that it belongs to"
    )


def checked_options(options: Any) -> dict[str, Any]:
    """The options of each actor: those of the user, and ours.

    Raises:
        InvalidArgumentError: there is no such option, or it is not the user's to choose.
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
    # What is lost is started again by us, who know what it had; and its name is nobody's affair.
    return {"num_cpus": 1, **given, "max_restarts": 0, "max_task_retries": 0}


def is_loss(error: BaseException) -> bool:
    """Whether an actor is lost, or what it has returned: not a failure of what it was asked."""
    exceptions = required_ray().exceptions
    return isinstance(
        error,
        exceptions.RayActorError
        | exceptions.ObjectLostError
        | exceptions.NodeDiedError
        | exceptions.WorkerCrashedError,
    )


def was_refused(error: BaseException | None) -> bool:
    """Whether an actor has ended since it could not begin: as any other one would."""
    return bool(getattr(error, "actor_init_failed", False))


def is_own_death(error: BaseException | None) -> bool:
    """Whether an actor has died, perhaps of what it did; or else its node, which may be anything's
    fault."""
    is_actor_error = isinstance(error, required_ray().exceptions.RayActorError)
    return (
        is_actor_error and not getattr(error, "preempted", False) and _NODE_DIED not in str(error)
    )


def plain(text: str) -> str:
    """A text of Ray without its colours, which are for terminals."""
    return _COLOUR.sub("", text)


def why_failed(error: BaseException) -> str:
    """What a call of an actor has failed by: not as Ray tells it, with all of the traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return plain(said(cause))
    lines = [line.strip() for line in plain(str(error)).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def why_lost(error: BaseException | None) -> str:
    """What has become of an actor, in few words. (Ray's are a hundred, and the same each time.)"""
    text = plain(str(error))
    if _NODE_DIED in text:
        return "was lost with its node"
    if _PROCESS_DIED in text:
        return "has died: its process was killed, or has crashed"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"is lost ({type(error).__name__}: {first[:200]})"
