"""`tf.contrib.training.HParams`: named values, and the texts that override them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aioqueue.compat.v1 as tf
from tests.compat.steps import refused


@pytest.fixture
def params() -> Any:
    return tf.contrib.training.HParams(
        steps=10, rate=0.5, name="net", sizes=[4, 2], is_training=True, other=None
    )


def test_they_are_attributes(params: Any) -> None:
    assert (params.steps, params.rate, params.sizes) == (10, 0.5, [4, 2])
    params.steps = 3  # as with any object
    assert params.steps == params.get("steps") == params.values()["steps"] == 3
    assert params.get("zork", 7) == 7
    assert "steps" in params
    assert "zork" not in params
    assert str(params).startswith("[('is_training', True), ('name', 'net')")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("steps=7", "steps", 7),
        ("rate=3", "rate", 3.0),
        (" rate = 1e-3 ,steps=1", "rate", 0.001),
        ("name=a b/c.txt", "name", "a b/c.txt"),
        ("sizes=[1,2, 3]", "sizes", [1, 2, 3]),
        ("sizes[1]=9", "sizes", [4, 9]),
        ("is_training=false", "is_training", False),
        ("is_training=1", "is_training", True),
        ("other=x", "other", "x"),
        ("", "steps", 10),
    ],
)
def test_texts(params: Any, text: str, name: str, value: Any) -> None:
    assert params.parse(text) is params
    assert params.get(name) == value
    assert type(params.get(name)) is type(value)


@pytest.mark.parametrize(
    "text", ["zork=1", "steps=x", "steps=1.5", "sizes=5", "steps=[1]", "steps", "is_training=maybe"]
)
def test_wrong_texts(params: Any, text: str) -> None:
    before = params.values()
    refused(ValueError, text.partition("=")[0], params.parse, text)
    assert params.values() == before


def test_dictionaries_and_json(params: Any) -> None:
    params.override_from_dict({"rate": 2, "sizes": [5]}).parse_json('{"name": "b"}')
    assert (params.rate, params.sizes, params.name) == (2.0, [5], "b")
    assert json.loads(params.to_json()) == params.values()
    refused(KeyError, "", params.override_from_dict, {"zork": 1})
    for name, value in (("steps", 1.5), ("steps", "1"), ("name", 3), ("is_training", 1)):
        refused(ValueError, name, params.set_hparam, name, value)
    refused(ValueError, "list", params.set_hparam, "sizes", 3)


def test_names_are_added_once(params: Any) -> None:
    params.add_hparam("more", 1)
    refused(ValueError, "reserved: more", params.add_hparam, "more", 2)
    refused(ValueError, "empty", params.add_hparam, "none", [])
