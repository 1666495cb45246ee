"""The bounds of the table of growing costs; nothing is counted here but small counts."""

from __future__ import annotations

import pytest

from benchmarks.growth import rows
from benchmarks.growth.rows import ROWS, Row, Run, count, figures_of, instructions, load


def row(**bounds: float) -> Row:
    limits = {"growth": 1.2, "at_most": None, "at_least": None, **bounds}
    return Row("a row", "calls", (10, 20, 40), float, **limits)  # type: ignore[arg-type]


def nothing(n: int) -> Run:
    return lambda: n


def test_a_cost_that_grows_is_a_fault() -> None:
    assert row().faults((5.0, 9.0, 6.0)) == []
    assert row().faults((5.0, 5.0, 6.1)) == ["grows 1.22 times, at most 1.2"]


def test_a_cost_outside_its_bounds_is_a_fault() -> None:
    assert row(at_most=5).faults((5.0, 5.0, 5.0)) == []
    assert row(at_most=5).faults((5.0, 5.1, 5.0)) == ["5.1 calls, at most 5"]
    assert row(at_least=40).faults((40.0, 39.0, 41.0)) == ["39 calls, at least 40"]


def test_a_figure_is_the_cost_of_one_thing() -> None:
    linear = Row("linear", "calls", (10, 20, 40), lambda n: 3.0 * n, 1.2, None, None)
    square = Row("square", "calls", (10, 20, 40), lambda n: float(n * n), 1.2, None, None)
    figures = figures_of([linear, square])
    assert figures == {"linear": (3.0, 3.0, 3.0), "square": (10.0, 20.0, 40.0)}
    assert square.faults(figures["square"]) == ["grows 4.00 times, at most 1.2"]


def test_a_cost_beside_that_of_its_peer_is_a_fault_beyond_so_many_times() -> None:
    one = Row("a row", "calls", (10, 20, 40), float, 1.2, None, None, "a peer", 2)
    assert one.faults((6.0, 6.0, 6.0), (3.0, 4.0, 5.0)) == []
    assert one.faults((6.0, 6.0, 6.0), (3.0, 4.0, 2.5)) == ["2.40 times a peer, at most 2"]


def test_a_peer_is_a_row_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS", {})
    instructions("a row", (1, 2, 3), nothing, peer=("by hand", nothing), times=2)
    assert list(rows.ROWS) == ["a row: by hand", "a row"]
    assert rows.ROWS["a row"].peer == "a row: by hand"
    assert rows.ROWS["a row: by hand"].faults((1.0, 9.0, 99.0)) == []


def test_a_title_names_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS", {})
    count("a row", "calls", (1, 2, 3), float)
    with pytest.raises(ValueError, match="two rows are called 'a row'"):
        count("a row", "calls", (1, 2, 3), float)


def test_every_module_of_the_folder_has_rows_with_ascending_sizes() -> None:
    load()
    assert ROWS
    for one in ROWS.values():
        assert one.sizes == tuple(sorted(set(one.sizes))), one.title
