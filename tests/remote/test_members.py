"""The register of a coordinator's programs, without programs: what it answers, and when."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aioqueue.errors import QueueClosedError, WorkerDiedError
from aioqueue.processes.failures import failure_of_message, message_of_failure
from aioqueue.remote.members import ActiveWorker, Failure, MemberRegister, News, ProgramReport
from aioqueue.telemetry.explain.registry import known_coordinators


@pytest.fixture
def register() -> MemberRegister:
    return MemberRegister("coordinator 'test'")


def reported(life: str, number: int = 0, **changes: Any) -> ProgramReport:
    """The report of a program that has just begun, but for what is given."""
    first = ProgramReport(life, f"at {life}", 0, number, (), 0, (), None, False, (), 0)
    return first._replace(**changes)


def failure(error: Exception) -> Failure:
    return Failure(message_of_failure(error), "worker", "place")


def errors(news: News) -> list[str]:
    return [repr(failure_of_message(one.message)) for _, one in news.failures]


def workers(*names: str, is_local: bool = True) -> list[ActiveWorker]:
    return [ActiveWorker(name, name, is_local) for name in names]


def test_news_come_once_there_are_some(register: MemberRegister) -> None:
    register.report(reported("one"))
    answers: list[News] = []
    register.news("one", 0, 0, False, answers.append)
    register.report(reported("two"))
    assert not answers
    register.report(reported("two", 1, stopped_by="two"))
    assert [news.stopped_by for news in answers] == ["two"]
    register.news("one", 0, 0, False, answers.append)  # it is due at once
    assert len(answers) == 2


def test_a_request_ends_with_the_program_that_made_it(register: MemberRegister) -> None:
    left: list[int] = []
    answers: list[Any] = []
    register.report(reported("one", workers=workers("a")))
    register.news("two", 0, 0, False, answers.append, lambda: bool(left))
    register.wait_ended(["a"], answers.append, lambda: bool(left))
    left.append(1)
    register.answer_waiting()
    assert register._waits == []


def test_a_failure_is_counted_once_however_often_it_is_reported(register: MemberRegister) -> None:
    failed = [failure(ValueError("x"))]
    for number in range(3):
        news = register.report(reported("one", number, failures=failed))
        assert news.taken == 1
        assert errors(news) == []  # it has them itself
    assert errors(register.report(reported("two"))) == ["ValueError('x')"]


def test_what_the_stop_causes_is_no_failure(register: MemberRegister) -> None:
    register.report(reported("one", stopped_by="one"))
    late = reported("two", failures=[failure(QueueClosedError("closed"))])
    news = register.report(late)
    assert (news.total, news.taken) == (0, 1)


def test_a_late_report_does_not_bring_workers_back(register: MemberRegister) -> None:
    register.report(reported("one", 2))
    register.report(reported("one", 1, workers=workers("a")))
    assert register.other_workers("two") == []


def test_a_death_is_reported_with_the_workers(register: MemberRegister) -> None:
    register.report(reported("one", workers=[*workers("a", "b"), *workers("c", is_local=False)]))
    register.report(reported("two"))
    ended: list[list[str]] = []
    register.wait_ended(["a"], ended.append)
    register.end(["one"], lambda place: f"{place} was killed", exitcode=-9)
    assert ended == [["a"]]
    news = register.report(reported("two", 1))
    (one,) = news.failures
    error = failure_of_message(one[1].message)
    assert isinstance(error, WorkerDiedError)
    assert str(error) == "coordinator 'test': 2 workers (a, b) died: at one was killed"
    assert error.exitcode == -9
    assert register.programs() == 1


@pytest.mark.parametrize("if_idle", [False, True])
def test_the_death_of_an_idle_program(register: MemberRegister, if_idle: bool) -> None:
    for life in ("one", "two"):
        register.report(reported(life))
    register.end(["one", "unknown"], lambda place: f"{place} was killed", if_idle=if_idle)
    news = register.report(reported("two", 1))
    assert news.total == if_idle
    assert register.is_stopped == if_idle


def test_the_death_of_the_only_program_is_forgotten(register: MemberRegister) -> None:
    register.report(reported("one", workers=workers("a")))
    register.end(["one"], str)
    assert not register.is_stopped


def test_it_starts_afresh_once_all_failures_were_raised(register: MemberRegister) -> None:
    register.report(reported("one", failures=[failure(ValueError("x"))]))
    register.leave(reported("one", 1, acknowledged=1))
    assert register.report(reported("two")).total == 1  # no join has raised it
    register.leave(reported("two", 1, is_joined=True))
    news = register.report(reported("three"))
    assert (news.run, news.total, news.stopped_by) == (1, 0, None)


def test_a_program_that_clears_a_run_of_before_changes_nothing(register: MemberRegister) -> None:
    register.stop("somebody")
    assert register.clear(0) == 1
    assert not register.is_stopped
    register.stop("somebody")
    assert register.clear(0) == 1
    assert register.is_stopped


def test_workers_in_a_join_are_not_waited_for(register: MemberRegister) -> None:
    register.report(reported("one", workers=workers("a", "b"), joining=["a"]))
    assert [one.name for one in register.other_workers("two")] == ["b (at one)"]
    assert register.joining() == 1
    assert register.place_of("b") == "b, at one"
    assert register.place_of("c") == ""
    assert register.place_of_program("one") == "at one"


def test_explanations_leave_it_out() -> None:
    before = len(known_coordinators())
    register = MemberRegister("coordinator 'test'")
    register.clear(0)
    assert len(known_coordinators()) == before
    assert pickle.loads(pickle.dumps(register.report(reported("one")))).total == 0
