"""Notices from cloud providers that a machine is about to be taken away, for `Preemption`.

Each function asks the metadata server of its cloud. That server answers only from within a machine
and needs no credentials. A thread of `Preemption` calls the functions again and again, so they may
block. They raise if the server gives no answer; `Preemption` then logs the error and asks again.

Sources:
    "Spot Instance interruption notices" and "Use IMDSv2" in the Amazon EC2 User Guide; "Create and
    use Spot VMs" in the documentation of Google Compute Engine; "Scheduled Events" in that of Azure
    virtual machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from aioqueue.arguments import checked_seconds
from aioqueue.inputs.preemption import Notice

__all__ = ("aws_notice", "azure_notice", "gcp_notice")

_LINK_LOCAL: Final = "http://169.254.169.254"
_AWS_TOKEN_SECONDS: Final = 21600
_GCP_GRACE: Final = 30.0
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404

_AZURE_ENDS: Final = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Events that end the processes of a machine. ``Freeze``, a pause, is not one of them."""


def aws_notice(*, endpoint: str = _LINK_LOCAL, timeout: float = 2.0) -> Callable[[], Notice | None]:
    """Make a notice for AWS spot instances, which comes two minutes before a stop or termination.

    It uses IMDSv2, with a session token that it keeps for the token's six hours. AWS recommends
    asking every 5 seconds.

    Args:
        endpoint: the address of the instance metadata service; ``"http://[fd00:ec2::254]"`` for
            IPv6.
        timeout: seconds to wait for an answer, >= 0.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        service, as on a machine outside AWS.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    return _AWS(_Server(endpoint, timeout))


def gcp_notice(
    *, endpoint: str = "http://metadata.google.internal", timeout: float = 2.0
) -> Callable[[], Notice | None]:
    """Make a notice for Spot VMs of Google Compute Engine, about 30 seconds before the shutdown.

    Args:
        endpoint: the address of the metadata server.
        timeout: seconds to wait for an answer, >= 0.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        server, as on a machine outside Google Cloud.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    server = _Server(endpoint, timeout)

    def notice() -> Notice | None:
        path = "/computeMetadata/v1/instance/preempted"
        answer = server.get(path, {"Metadata-Flavor": "Google"}).strip()
        if answer not in ("TRUE", "FALSE"):
            raise ValueError(f"{endpoint}{path}: got the answer {answer!r}; expected TRUE or FALSE")
        return Notice("GCP: preempted", _GCP_GRACE) if answer == "TRUE" else None

    return notice


def azure_notice(
    *,
    endpoint: str = _LINK_LOCAL,
    timeout: float = 120.0,
    events: Collection[str] = _AZURE_ENDS,
) -> Callable[[], Notice | None]:
    """Make a notice for the scheduled events of Azure that concern this virtual machine.

    Azure announces the eviction of a spot machine at least 30 seconds ahead. The deadline is the
    ``NotBefore`` of the event. Events of other machines, such as those of a scale set, do not
    count.

    Args:
        endpoint: the address of the instance metadata service.
        timeout: seconds to wait for an answer, >= 0. The first answer on a machine may take two
            minutes, because the first request turns the service on.
        events: the types of events that count. By default these are all that end processes; so
            ``"Freeze"``, a pause of some seconds, does not count.

    Returns:
        A function for ``Preemption(notice=...)``. It raises an `OSError` if it cannot reach the
        service, as on a machine outside Azure.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds.
    """
    return _Azure(_Server(endpoint, timeout), frozenset(events))


class _Server:
    """A metadata server."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._timeout = checked_seconds(timeout, "timeout")
        # The server is on the machine itself, where no proxy of the environment would find it.
        self._opener: OpenerDirector = build_opener(ProxyHandler({}))

    def get(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        """Return the server's answer.

        Raises:
            HTTPError: the server answers with a status other than success.
            OSError: the server cannot be reached.
        """
        request = Request(self.endpoint + path, headers=dict(headers), method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                text: str = answer.read().decode()
        except HTTPError as error:
            error.close()  # it is an answer too, and has the connection
            raise
        return text


class _AWS:
    """See `aws_notice`."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._token: str | None = None

    def __call__(self) -> Notice | None:
        """Ask once."""
        if self._token is not None:
            try:
                return self._asked(self._token)
            except HTTPError as error:
                if error.code != _UNAUTHORIZED:
                    raise  # else the token has expired
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_SECONDS)}
        self._token = self._server.get("/latest/api/token", lifetime, "PUT")
        return self._asked(self._token)

    def _asked(self, token: str) -> Notice | None:
        try:
            answer = self._server.get(
                "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}
            )
        except HTTPError as error:
            if error.code != _NOT_FOUND:
                raise
            return None  # nothing is going to happen
        action = json.loads(answer)
        when = datetime.fromisoformat(action["time"])  # as 2017-09-18T08:22:00Z
        return Notice(f"AWS: {action['action']}", _seconds_until(when))


class _Azure:
    """See `azure_notice`."""

    def __init__(self, server: _Server, events: frozenset[str]) -> None:
        self._server = server
        self._events = events
        self._name: str | None = None  # the name of this machine

    def __call__(self) -> Notice | None:
        """Ask once."""
        if self._name is None:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = self._server.get(path, {"Metadata": "true"}).strip()
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        document = json.loads(self._server.get(path, {"Metadata": "true"}))
        notices = [
            _azure_notice_of(event)
            for event in document["Events"]
            if event["EventType"] in self._events and self._name in event["Resources"]
        ]
        return min(notices, key=lambda notice: notice.seconds or 0.0, default=None)


def _azure_notice_of(event: Mapping[str, Any]) -> Notice:
    # `NotBefore` is empty once the event has begun.
    when = event.get("NotBefore")
    seconds = _seconds_until(parsedate_to_datetime(when)) if when else 0.0
    return Notice(f"Azure: {event['EventType']}", seconds)


def _seconds_until(when: datetime) -> float:
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
