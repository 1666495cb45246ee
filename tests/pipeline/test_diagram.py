"""Pipelines as they show themselves: in letters, and as SVG."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from aioqueue.inputs import files, from_iterable, items, mix, numbers, read_lines

SVG = "{http://www.w3.org/2000/svg}"


def drawn(pipeline: Any) -> ElementTree.Element:
    """The SVG, which is sound XML."""
    return ElementTree.fromstring(pipeline._repr_svg_())


def boxes(pipeline: Any) -> list[tuple[int, int, str]]:
    """The boxes of a drawing: where each is, and its name."""
    found = []
    for group in drawn(pipeline).iter(f"{SVG}g"):
        x, y = re.findall(r"\d+", group.attrib["transform"])
        name = group.find(f"{SVG}text")
        assert name is not None
        found.append((int(x), int(y), str(name.text)))
    return found


def two_columns() -> Any:
    letters = items(["a", "b", "c"], seed=1).prepare(str.upper).filter(str.isalpha)
    return numbers(3, seed=2).mix(letters, weights=[3, 1]).batch(2)


def test_what_is_mixed_in_is_indented_in_letters() -> None:
    assert str(two_columns()).splitlines() == [
        "Pipeline",
        "  numbers  of 3, seed=2",
        "  mix      0.75 : 0.25, stop='all'",
        "    + items    of 3, seed=1",
        "      prepare  upper on 4 threads",
        "      filter   isalpha",
        "  batch    2",
    ]


def test_what_is_mixed_in_is_a_column_of_its_own_in_svg() -> None:
    placed = boxes(two_columns())
    left, right = sorted({x for x, _, _ in placed})
    columns = {
        x: [name for _, name in sorted((y, name) for x1, y, name in placed if x1 == x)]
        for x in (left, right)
    }
    assert columns == {left: ["numbers", "mix", "batch"], right: ["items", "prepare", "filter"]}
    # No box is on another one; and the mixture is below the last ones of both columns.
    assert len({(x, y) for x, y, _ in placed}) == len(placed)
    tops = {name: y for _, y, name in placed}
    assert tops["numbers"] == tops["filter"] < tops["mix"] < tops["batch"]
    assert len(list(drawn(two_columns()).iter(f"{SVG}path"))) == len(placed) - 1


def test_it_is_as_large_as_what_it_shows() -> None:
    picture = drawn(two_columns().mix(two_columns(), numbers(1)))
    width, height = int(picture.attrib["width"]), int(picture.attrib["height"])
    assert picture.attrib["viewBox"] == f"0 0 {width} {height}"
    for group in picture.iter(f"{SVG}g"):
        x, y = map(int, re.findall(r"\d+", group.attrib["transform"]))
        box = group.find(f"{SVG}rect")
        assert box is not None
        assert x + int(box.attrib["width"]) < width
        assert y + int(box.attrib["height"]) < height


def test_sources_are_named_as_they_were_made(tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("a")
    source = files(tmp_path / "*.txt", seed=3)
    lines = str(source.batch(2)).splitlines()
    assert lines[1] == f"  files  {str(tmp_path / '*.txt')!r} of 1, seed=3"
    lines = str(read_lines(source).batch(2)).splitlines()
    assert lines[1].startswith("  read_lines  from files('")
    mixture = mix([numbers(1, seed=1), numbers(2, seed=2)], seed=3)
    assert str(mixture.batch(2)).splitlines()[1] == (
        "  mix    0.5 of numbers of 1, seed=1, 0.5 of numbers of 2, seed=2; stop='all', seed=3"
    )


def test_long_details_are_shortened_and_shown_in_full() -> None:
    def a_function_with_a_name_that_does_not_fit_into_any_box_at_all(n: int) -> int:
        return n

    pipeline = numbers(3).prepare(a_function_with_a_name_that_does_not_fit_into_any_box_at_all)
    *_, box = drawn(pipeline).iter(f"{SVG}g")
    title, _, _, details = box
    assert str(title.text).endswith("any_box_at_all on 4 threads")
    assert str(details.text).endswith("…")
    assert str(details.text)[:-1] in str(title.text)


def test_a_source_of_a_nameless_function_is_shown_as_any_other() -> None:
    """Its repr has brackets within, so that a diagram asks for the details."""
    lines = str(from_iterable(lambda: iter([1]), seed=3).batch(2)).splitlines()
    assert lines[1] == "  iterable  of <lambda>, seed=3"
