"""Notices of clouds, asked of a server that answers as theirs do."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.inputs import Notice, Preemption, aws_notice, azure_notice, gcp_notice
from tests.kit.worlds import spin_until

Answer = tuple[int, str]
Answers = Callable[[str, str, Any], Answer]
"""Of a method, a path and headers."""


class Cloud:
    """A metadata server on this machine, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, str]] = []
        self.answers: Answers = lambda *_: (500, "nobody has said what to answer")


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            made.asked.append((self.command, self.path))
            status, text = made.answers(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = answer  # noqa: N815  # as `http.server` calls them

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Cloud(f"http://127.0.0.1:{server.server_port}")
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield made
        server.shutdown()
        serving.join()


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the environment are not for metadata: this one does not exist."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)


def deadline(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def aws(action: str | None) -> Answers:
    """IMDSv2: nothing without a token, which a PUT gives to who says for how long."""

    def answers(method: str, path: str, headers: Any) -> Answer:
        if (method, path) == ("PUT", "/latest/api/token"):
            assert 1 <= int(headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
            return 200, "token"
        if headers["X-aws-ec2-metadata-token"] != "token":
            return 401, ""
        assert (method, path) == ("GET", "/latest/meta-data/spot/instance-action")
        return (404, "") if action is None else (200, action)

    return answers


class TestAWS:
    def test_nothing_is_going_to_happen(self, cloud: Cloud) -> None:
        cloud.answers = aws(None)
        notice = aws_notice(endpoint=cloud.url)
        assert notice() is None
        assert notice() is None
        assert [method for method, _ in cloud.asked] == ["PUT", "GET", "GET"]  # one token

    def test_a_notice_has_the_deadline(self, cloud: Cloud) -> None:
        when = deadline(120).strftime("%Y-%m-%dT%H:%M:%SZ")
        cloud.answers = aws(json.dumps({"action": "terminate", "time": when}))
        found = aws_notice(endpoint=cloud.url)()
        assert found is not None
        assert found.reason == "AWS: terminate"
        assert found.seconds is not None
        assert 60 < found.seconds <= 120

    def test_a_token_that_has_expired(self, cloud: Cloud) -> None:
        cloud.answers = aws(None)
        notice = aws_notice(endpoint=cloud.url)
        notice()
        whole = cloud.answers

        def expired(method: str, path: str, headers: Any) -> Answer:
            if method == "PUT":
                cloud.answers = whole
            return (200, "token") if method == "PUT" else (401, "")

        cloud.answers = expired
        assert notice() is None
        assert [method for method, _ in cloud.asked] == ["PUT", "GET", "GET", "PUT", "GET"]

    def test_a_server_of_another_service(self, cloud: Cloud) -> None:
        """Where there are no tokens, nothing is known: that is no answer."""
        cloud.answers = lambda *_: (404, "")
        with pytest.raises(HTTPError):
            aws_notice(endpoint=cloud.url)()

    def test_a_server_that_is_out_of_order(self, cloud: Cloud) -> None:
        cloud.answers = lambda method, *_: (200, "token") if method == "PUT" else (503, "")
        with pytest.raises(HTTPError):
            aws_notice(endpoint=cloud.url)()


class TestGCP:
    @pytest.mark.parametrize(
        ("answer", "found"), [("FALSE", None), ("TRUE\n", Notice("GCP: preempted", 30.0))]
    )
    def test_a_notice_is_reported(self, cloud: Cloud, answer: str, found: Notice | None) -> None:
        def answers(method: str, path: str, headers: Any) -> Answer:
            assert (method, path) == ("GET", "/computeMetadata/v1/instance/preempted")
            return (200, answer) if headers["Metadata-Flavor"] == "Google" else (403, "")

        cloud.answers = answers
        assert gcp_notice(endpoint=cloud.url)() == found

    def test_another_answer_is_none(self, cloud: Cloud) -> None:
        cloud.answers = lambda *_: (200, "<html>log in</html>")
        with pytest.raises(ValueError, match="log in"):
            gcp_notice(endpoint=cloud.url)()


def azure(*events: dict[str, Any]) -> Answers:
    def answers(method: str, path: str, headers: Any) -> Answer:
        if headers["Metadata"] != "true":
            return 400, ""
        if path.startswith("/metadata/instance/compute/name?api-version="):
            return 200, "trainer_3"
        assert (method, path) == ("GET", "/metadata/scheduledevents?api-version=2020-07-01")
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": events})

    return answers


def event(kind: str, *machines: str, when: str = "") -> dict[str, Any]:
    return {"EventId": "1", "EventType": kind, "Resources": [*machines], "NotBefore": when}


class TestAzure:
    def test_nothing_is_going_to_happen(self, cloud: Cloud) -> None:
        cloud.answers = azure()
        notice = azure_notice(endpoint=cloud.url)
        assert notice() is None
        assert notice() is None
        assert len(cloud.asked) == 3  # the name is asked for once

    @pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
    def test_a_notice_has_the_deadline(self, cloud: Cloud, kind: str) -> None:
        when = format_datetime(deadline(40), usegmt=True)
        cloud.answers = azure(event(kind, "trainer_1", "trainer_3", when=when))
        found = azure_notice(endpoint=cloud.url)()
        assert found is not None
        assert found.reason == f"Azure: {kind}"
        assert found.seconds is not None
        assert 10 < found.seconds <= 40

    def test_what_has_begun_already_comes_first(self, cloud: Cloud) -> None:
        later = format_datetime(deadline(900), usegmt=True)
        cloud.answers = azure(
            event("Reboot", "trainer_3", when=later), event("Preempt", "trainer_3")
        )
        assert azure_notice(endpoint=cloud.url)() == Notice("Azure: Preempt", 0.0)

    def test_other_machines_and_pauses_do_not_count(self, cloud: Cloud) -> None:
        cloud.answers = azure(event("Preempt", "trainer_4"), event("Freeze", "trainer_3"))
        assert azure_notice(endpoint=cloud.url)() is None
        found = azure_notice(endpoint=cloud.url, events=["Freeze"])()
        assert found == Notice("Azure: Freeze", 0.0)


@contextmanager
def preempted_by(cloud: Cloud) -> Iterator[Preemption]:
    with Preemption((), notice=gcp_notice(endpoint=cloud.url), every=0.001) as preempted:
        yield preempted


def test_it_preempts_with_its_reason_and_its_deadline(cloud: Cloud) -> None:
    cloud.answers = lambda *_: (200, "TRUE")
    with preempted_by(cloud) as preempted:
        spin_until(lambda: bool(preempted))
        assert preempted.reason == "GCP: preempted"
        assert preempted.seconds_left is not None
        assert 20 < preempted.seconds_left <= 30


def test_a_failing_request_is_reported_when_its_error_changes(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aioqueue")
    with preempted_by(cloud) as preempted:
        spin_until(lambda: len(cloud.asked) > 3)
        assert "500" in str(preempted.notice_error)
        cloud.answers = lambda *_: (503, "")
        spin_until(lambda: "503" in str(preempted.notice_error))
        cloud.answers = lambda *_: (200, "FALSE")
        spin_until(lambda: preempted.notice_error is None)
        assert not preempted
    messages = [record.getMessage() for record in caplog.records]
    assert [text for text in messages if "preemption notice failed" in text] == messages[:2]
    assert "works again" in messages[2]
    assert len(messages) == 3


@pytest.mark.parametrize("make", [aws_notice, gcp_notice, azure_notice])
@pytest.mark.parametrize("answer", [" " * 2**21, "[" * 2**19])
def test_an_answer_has_bounds(cloud: Cloud, make: Any, answer: str) -> None:
    cloud.answers = lambda method, *_: (200, "token" if method == "PUT" else answer)
    with pytest.raises(ValueError, match=r"more than 1048576 bytes|nested|expected TRUE"):
        make(endpoint=cloud.url)()


@pytest.mark.parametrize("make", [aws_notice, gcp_notice, azure_notice])
def test_no_server_is_there(make: Any) -> None:
    with pytest.raises(OSError, match="refused"):
        make(endpoint="http://127.0.0.1:9")()


@pytest.mark.parametrize("make", [aws_notice, gcp_notice, azure_notice])
def test_what_is_refused(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        make(timeout="soon")
