"""Where the files of the examples are."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that a file is written once."""
    return tmp_path_factory.mktemp("examples")
