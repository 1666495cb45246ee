"""A diagram of a pipeline: as text, and as an SVG for notebooks and pages.

Stages stand below each other. The pipelines that `mix`, `zip` and `concat` bring in have columns of
their own in the SVG. In the text they are indented below that stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from aioqueue.base.display_text import escaped_for_xml as escape
from aioqueue.base.display_text import on_one_line
from aioqueue.pipeline.build import length_of
from aioqueue.pipeline.stages.base import BasePipeline

_WIDTH: Final = 360
_HEIGHT: Final = 44
_GAP: Final = 18
_MARGIN: Final = 8
_LETTERS: Final = 48
"""How many characters of the details fit into a box."""

_STYLE: Final = """
  .aioqueue-box { fill: #eef2f7; stroke: #5b7083; }
  .aioqueue-name { fill: #16324a; font-weight: 600; }
  .aioqueue-details { fill: #40566a; }
  .aioqueue-arrow { stroke: #5b7083; fill: none; }
  @media (prefers-color-scheme: dark) {
    .aioqueue-box { fill: #22303c; stroke: #8fa6ba; }
    .aioqueue-name { fill: #e6eef5; }
    .aioqueue-details { fill: #b5c6d4; }
    .aioqueue-arrow { stroke: #8fa6ba; } }
"""
"""The class names are unique to us, because styles of an SVG inside a page apply to the page."""


def text(pipeline: BasePipeline[Any]) -> str:
    """The stages, one in a line, and how many rows an epoch has."""
    length = length_of(pipeline)
    count = "" if length is None else f", {length:,} per epoch"
    return "\n".join([f"Pipeline{count}", *_lines(pipeline, "  ")])


def _lines(pipeline: BasePipeline[Any], indent: str) -> list[str]:
    name, details = _source(pipeline)
    width = max(len(name), *(len(stage.name) for stage in pipeline.stages), 0)
    lines = [f"{indent}{name:<{width}}  {details}".rstrip()]
    for stage in pipeline.stages:
        lines.append(f"{indent}{stage.name:<{width}}  {on_one_line(stage.details())}".rstrip())
        for other in stage.branches():
            first, *others = _lines(other, f"{indent}    ")
            lines += [f"{indent}  + {first.lstrip()}", *others]
    return lines


def _source(pipeline: BasePipeline[Any]) -> tuple[str, str]:
    source = pipeline.source
    # A name may have an argument, as in "files('*.txt')" and "cache in memory".
    kind = "".join(takewhile(str.isidentifier, source.name)) or source.name
    argument = source.name.removeprefix(kind).strip("() ")
    details = f"{argument}{source._details()}".lstrip(",: ")
    return on_one_line(kind), on_one_line(details)


@dataclass(frozen=True)
class _Box:
    """A source or a stage in its place."""

    column: int
    row: int
    name: str
    details: str

    def moved(self, columns: int, rows: int) -> _Box:
        return replace(self, column=self.column + columns, row=self.row + rows)

    @property
    def left(self) -> int:
        return _MARGIN + self.column * (_WIDTH + _GAP)

    @property
    def top(self) -> int:
        return _MARGIN + self.row * (_HEIGHT + _GAP)

    def drawn(self) -> str:
        details = self.details
        if len(details) > _LETTERS:
            details = f"{details[: _LETTERS - 1]}…"
        return (
            f'<g transform="translate({self.left} {self.top})">\n'
            f"<title>{escape(f'{self.name} {self.details}'.strip())}</title>\n"
            f'<rect class="aioqueue-box" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>\n'
            f'<text class="aioqueue-name" x="10" y="18">{escape(self.name)}</text>\n'
            f'<text class="aioqueue-details" x="10" y="35">{escape(details)}</text>\n</g>'
        )


@dataclass
class _Layout:
    """Boxes in columns and rows, and arrows between them. The last box is the last stage."""

    boxes: list[_Box] = field(default_factory=list)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    columns: int = 1

    @property
    def rows(self) -> int:
        return self.boxes[-1].row + 1

    def add(self, name: str, details: str) -> None:
        """Add a box below the last one."""
        row = self.rows if self.boxes else 0
        if self.boxes:
            self.arrows.append((len(self.boxes) - 1, len(self.boxes)))
        self.boxes.append(_Box(0, row, name, details))

    def add_joined(self, name: str, details: str, others: list[_Layout]) -> None:
        """Put other layouts beside this one, and add a box below the last boxes of all."""
        depth = max(layout.rows for layout in (self, *others))
        ends = [len(self.boxes) - 1]
        self.boxes = [box.moved(0, depth - self.rows) for box in self.boxes]
        for other in others:
            first = len(self.boxes)
            self.boxes += [box.moved(self.columns, depth - other.rows) for box in other.boxes]
            self.arrows += [(first + start, first + end) for start, end in other.arrows]
            self.columns += other.columns
            ends.append(len(self.boxes) - 1)
        self.arrows += [(end, len(self.boxes)) for end in ends]
        self.boxes.append(_Box(0, depth, name, details))

    def arrow(self, start: _Box, end: _Box) -> str:
        """Draw an arrow to the top of the next box, or to its right side from another column."""
        x, y = start.left + _WIDTH // 2, start.top + _HEIGHT
        if start.column == end.column:
            path, head = f"M{x} {y} V{end.top - 2}", "m-4 -5 l4 5 l4 -5"
        else:
            middle = end.top + _HEIGHT // 2
            path, head = f"M{x} {y} V{middle} H{end.left + _WIDTH + 2}", "m5 -4 l-5 4 l5 4"
        return f'<path class="aioqueue-arrow" d="{path} {head}"/>'


def _layout(pipeline: BasePipeline[Any]) -> _Layout:
    layout = _Layout()
    layout.add(*_source(pipeline))
    for stage in pipeline.stages:
        others = [_layout(other) for other in stage.branches()]
        if others:
            layout.add_joined(stage.name, stage.details(), others)
        else:
            layout.add(stage.name, stage.details())
    return layout


def svg(pipeline: BasePipeline[Any]) -> str:
    """The stages as boxes, from top to bottom, in the light or dark scheme of the viewer."""
    layout = _layout(pipeline)
    width = 2 * _MARGIN + layout.columns * _WIDTH + (layout.columns - 1) * _GAP
    height = 2 * _MARGIN + layout.rows * _HEIGHT + (layout.rows - 1) * _GAP
    label = escape(" to ".join(box.name for box in layout.boxes if not box.column))
    parts = [box.drawn() for box in layout.boxes]
    parts += [layout.arrow(layout.boxes[start], layout.boxes[end]) for start, end in layout.arrows]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="Pipeline: {label}"'
        ' font-family="system-ui, sans-serif" font-size="13">\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )
