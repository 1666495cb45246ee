"""The registry of executors."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from aioqueue import InvalidArgumentError
from aioqueue.base.arguments import EnqueueOp
from aioqueue.workers.executor import FILES, Executor, all_executors, find_executor
from aioqueue.workers.executors.threads import ThreadExecutor
from aioqueue.workers.options import Where


async def coroutine_function(item: Any) -> Any:
    return item


class _Complete(Executor, registered=False):
    def enqueue_ops(self) -> list[EnqueueOp]:
        return []

    def stop(self) -> None: ...

    def notify_room(self) -> None: ...

    def notify_resize(self) -> None: ...

    def end(self) -> BaseException | None:
        return None


def test_every_where_has_an_executor() -> None:
    wheres = set(get_args(Where)) - {"auto"}
    assert set(FILES) == wheres
    assert {executor.where for executor in all_executors()} == wheres


@pytest.mark.parametrize("where", sorted(FILES))
@pytest.mark.parametrize("is_timed", [False, True])
def test_an_executor_is_found_by_name(where: str, is_timed: bool) -> None:
    function = coroutine_function if where == "task" else abs
    found = find_executor(where, function, is_timed=is_timed)
    assert found.where == where
    assert found.is_timed in (None, is_timed)


def test_the_kind_of_function_selects_tasks_or_threads() -> None:
    assert find_executor("auto", abs, is_timed=False) is ThreadExecutor
    assert find_executor("auto", coroutine_function, is_timed=False).where == "task"


def test_an_executor_cannot_run_the_other_kind_of_function() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a plain function"):
        find_executor("process", coroutine_function, is_timed=False)


def test_a_class_that_lacks_an_attribute_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Incomplete lacks the attributes where, .*takes_ray"):

        class Incomplete(_Complete):
            pass


def test_two_classes_for_the_same_jobs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"and ThreadExecutor both run where='thread' without"):

        class Second(ThreadExecutor):
            pass


@pytest.mark.parametrize("executor", all_executors(), ids=lambda one: one.__name__)
def test_a_number_of_workers_is_formatted_in_words(executor: type[Executor]) -> None:
    assert executor.counted(1) == f"1 {executor.worker_name}"
    assert executor.counted(2) == f"2 {executor.worker_plural}"
