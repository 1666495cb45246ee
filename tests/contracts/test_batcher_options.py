"""Each option of a `Batcher` refuses what is no value for it, and stands in the guide."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import aioqueue
from aioqueue import InvalidArgumentError, sync

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "requests.md"
OPTIONS = [name for name in inspect.signature(aioqueue.Batcher).parameters if name != "function"]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batcher", [aioqueue.Batcher, sync.Batcher], ids=["aio", "sync"])
def test_it_refuses_any_object(batcher: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^{name}: got <object .*; expected "):
        batcher(lambda batch: batch, **{name: object()})


@pytest.mark.parametrize("name", OPTIONS)
def test_the_guide_has_it(name: str) -> None:
    assert re.search(rf"`{name}\b|\b{name}=", GUIDE.read_text(encoding="utf-8")), (
        f"{GUIDE.name} does not mention the option {name} of a Batcher"
    )
