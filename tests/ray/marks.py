"""The marks of all tests that need a cluster."""

from __future__ import annotations

import pytest

from tests.kit.clusters import PATIENCE

__all__ = ("MARKS",)

MARKS = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(PATIENCE),
    # Of Ray's own.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
