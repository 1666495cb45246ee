"""Cases that TensorFlow has run, and what it gave: the record that `test_recorded` holds us to.

A case is a function of the module, TensorFlow's or ours, that runs in an empty folder. What it
returns is on record, and the names of the operations that it made. ``python -m
tests.compat.recorded`` writes the record, where TensorFlow is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}
OF_VALUES: set[str] = set()
RECORD = Path(__file__).with_name("record.json")
SPELLINGS = re.compile(r"(^|/)(Switch(_\d+)?|switch_[tf]|pred_id|Merge_\d+)$")
"""Operations by which TensorFlow spells a ``cond``; there is one here."""


def case(function: Case) -> Case:
    """Register a case."""
    CASES[function.__name__] = function
    return function


def unnamed(function: Case) -> Case:
    """Register a case whose operations have other names here."""
    OF_VALUES.add(function.__name__)
    return case(function)


class Report(str):
    """What a call gave, in comparable form."""

    __slots__ = ()


def outcome(function: Callable[..., Any], *arguments: Any) -> Report:
    """What a call returns, in comparable form, or the kind of error that it raises."""
    try:
        return Report(repr(plain(function(*arguments))))
    except Exception as error:
        return Report(type(error).__name__)


def full_outcome(function: Callable[..., Any], *arguments: Any) -> Report:
    """The same, with what the error says; without the line that says where."""
    try:
        return Report(repr(plain(function(*arguments))))
    except Exception as error:
        text = str(getattr(error, "message", error.args[0] if error.args else ""))
        # TensorFlow 2 tells where before it tells what.
        text = text.rpartition("Node: '")[2].partition("'\n")[2] if "Node: '" in text else text
        return Report(f"{type(error).__name__}: {text.partition(chr(10))[0].strip()}")


def plain(value: Any) -> Any:
    """Tensors as their texts, arrays as dtype and lists, nested things part by part."""
    if isinstance(value, Report):
        return value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in sorted(value.items())}
    if isinstance(value, np.ndarray | np.generic):
        kind = "string" if value.dtype.kind in "OS" else value.dtype.name
        return kind, [*map(_as_bytes, np.asarray(value).reshape(-1).tolist())], np.shape(value)
    if isinstance(value, str | bytes):
        return "string", [_as_bytes(value)], ()
    if isinstance(value, int | float | bool | type(None)):
        return value
    return re.sub(r"_ref\b|Dimension\((\w+)\)", r"\1", repr(value))


def _as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def run(tf: Any, function: Case) -> tuple[list[str], list[str]]:
    """What a case returns, part by part, and the names of the operations that it makes."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, chdir(folder):
        warnings.simplefilter("ignore")
        with tf.Graph().as_default() as graph:
            returned = function(tf)
    names = [one.name for one in graph.get_operations()]
    if function.__name__ in OF_VALUES:
        names = []
    return [one if isinstance(one, Report) else repr(plain(one)) for one in returned], [
        one for one in names if not SPELLINGS.search(one)
    ]


def tensorflow() -> Any:
    """TensorFlow, in graph mode."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("tensorflow.compat.v1")
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


def main() -> None:
    """Record all cases."""
    from tests.compat import cases_data, cases_files, cases_found, cases_graph, cases_parsing

    assert all((cases_data, cases_files, cases_found, cases_graph, cases_parsing)), (
        "they register their cases"
    )
    tf = tensorflow()
    rows = {name: run(tf, function) for name, function in CASES.items()}
    RECORD.write_text(f"{json.dumps(rows, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    from tests.compat.recorded import main as recording  # the module that cases register in

    recording()
