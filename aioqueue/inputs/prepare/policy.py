"""What becomes of an item whose preparation fails: stop, skip it, or try again."""

from __future__ import annotations

from typing import Any, Final

from aioqueue import InvalidArgumentError
from aioqueue.checks import counted, is_int
from aioqueue.coordination.outcomes import as_failure, told
from aioqueue.inputs.options import Retry

__all__ = ("FailurePolicy",)


_TOO_FEW: Final = 10
"""How many failures say nothing about their share, before the end."""


class FailurePolicy:
    """When to try again, when to skip, and when to stop after all.

    Args:
        on_error: ``"stop"``, ``"skip"`` or a `Retry`.
        max_failures: how many items may be skipped: an int >= 0; or which share of all items, in
            (0, 1), judged as soon as more than ten were skipped, and at the end. ``None`` for any
            number.
        has_quarantine: whether the caller has said where skipped items are to go.

    Raises:
        InvalidArgumentError: any argument is not as described.
    """

    def __init__(self, on_error: Any, max_failures: Any, *, has_quarantine: bool) -> None:
        if not isinstance(on_error, Retry) and on_error not in ("stop", "skip"):
            raise InvalidArgumentError(
                f"on_error: got {on_error!r}; expected 'stop', 'skip' or an aioqueue.inputs.Retry"
            )
        self.retry = on_error if isinstance(on_error, Retry) else None
        for what, given in (
            ("max_failures", max_failures is not None),
            ("quarantine", has_quarantine),
        ):
            if given and on_error == "stop":
                raise InvalidArgumentError(
                    f"{what}: given with on_error='stop', which skips no item; expected"
                    " on_error='skip' or a Retry with it"
                )
        self.skips = (
            on_error == "skip"
            or max_failures is not None
            or has_quarantine
            or (self.retry is not None and self.retry.then == "skip")
        )
        self._most: int | None = None
        self._share: float | None = None
        if is_int(max_failures) and max_failures >= 0:
            self._most = int(max_failures)
        elif isinstance(max_failures, float) and 0 < max_failures < 1:
            self._share = max_failures
        elif max_failures is not None:
            raise InvalidArgumentError(
                f"max_failures: got {max_failures!r}; expected an int >= 0, a share in (0, 1), or"
                " None"
            )

    @property
    def may_fail_twice(self) -> bool:
        """Whether the work goes on after a failure."""
        return self.skips or self.retry is not None

    def delay(self, error: BaseException, failures: int) -> float | None:
        """The seconds after which to try an item again; ``None`` to give it up.

        Args:
            error: its latest failure.
            failures: how many there were, that one included.
        """
        retry = self.retry
        if retry is None or failures > retry.times or not isinstance(error, retry.on):
            return None
        try:
            return retry.delay(failures)
        except BaseException as raised:  # nothing is awaited in there: no task was cancelled
            raise as_failure(raised, f"backoff raised {told(raised)}")  # noqa: B904

    def too_many(self, skipped: int, ended: int, *, at_end: bool = False) -> str:
        """Why so many skipped items among those that have ended are too many; empty if not."""
        if self._most is not None and skipped > self._most:
            return f"{counted(skipped, 'item')} failed, and max_failures allows {self._most}"
        share = self._share
        if share is None or skipped <= share * ended or not (at_end or skipped > _TOO_FEW):
            return ""
        of_all = counted(ended, "item")
        return f"{skipped} of {of_all} failed, and max_failures allows {share:.4g} of all"
