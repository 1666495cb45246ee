"""A pipeline as a drawing: in letters, and as an SVG for notebooks and pages."""

from __future__ import annotations

from html import escape
from string import ascii_letters, digits
from typing import Any, Final

from aioqueue.inputs.pipeline.building import length_of
from aioqueue.inputs.sources.pipeline import Pipeline

__all__ = ("svg", "text")

_WIDTH: Final = 360
_BOX: Final = 44
_GAP: Final = 18
_MARGIN: Final = 8
_MOST: Final = 46
"""Characters that fit a box."""

_WORD: Final = f"{ascii_letters}{digits}_"

_STYLE: Final = """
  .box { fill: #eef2f7; stroke: #5b7083; } .name { fill: #16324a; font-weight: 600; }
  .details { fill: #40566a; } .arrow { stroke: #5b7083; fill: none; }
  @media (prefers-color-scheme: dark) {
    .box { fill: #22303c; stroke: #8fa6ba; } .name { fill: #e6eef5; }
    .details { fill: #b5c6d4; } .arrow { stroke: #8fa6ba; } }
"""


def _lines_of(pipeline: Pipeline[Any]) -> list[tuple[str, str]]:
    """Source and stages: what each is called, and what is special about it."""
    source = repr(pipeline.source).removeprefix("<aioqueue.inputs.").removesuffix(">")
    name = source[: len(source) - len(source.lstrip(_WORD))]
    details = source[len(name) :].replace(", for ever", "")
    if details.startswith("("):
        details = details[1:].replace(")", "", 1)  # the argument that it was made with
    stages = [(stage.name, stage.details()) for stage in pipeline.stages]
    return [(name, details.lstrip(", ")), *stages]


def text(pipeline: Pipeline[Any]) -> str:
    """The stages, one in a line, and how much an epoch gives."""
    lines = _lines_of(pipeline)
    width = max(len(name) for name, _ in lines)
    drawn = [f"  {name:<{width}}  {details}".rstrip() for name, details in lines]
    length = length_of(pipeline)
    count = "" if length is None else f", {length:,} per epoch"
    return "\n".join([f"Pipeline{count}", *drawn])


def svg(pipeline: Pipeline[Any]) -> str:
    """The stages as boxes, from top to bottom."""
    lines = _lines_of(pipeline)
    height = 2 * _MARGIN + len(lines) * _BOX + (len(lines) - 1) * _GAP
    parts = []
    for place, (name, details) in enumerate(lines):
        top = _MARGIN + place * (_BOX + _GAP)
        parts.append(
            f'<g transform="translate({_MARGIN} {top})"><title>'
            f"{escape(f'{name} {details}')}</title>"
            f'<rect class="box" width="{_WIDTH - 2 * _MARGIN}" height="{_BOX}" rx="6"/>'
            f'<text class="name" x="10" y="18">{escape(name)}</text>'
            f'<text class="details" x="10" y="35">{escape(_shortened(details))}</text></g>'
        )
        if place:
            middle = _WIDTH // 2
            parts.append(
                f'<path class="arrow" d="M{middle} {top - _GAP} V{top - 2} m-4 -5 l4 5 l4 -5"/>'
            )
    label = escape(" to ".join(name for name, _ in lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Pipeline: {label}"'
        ' font-family="system-ui, sans-serif" font-size="13">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>"
    )


def _shortened(details: str) -> str:
    return details if len(details) <= _MOST else f"{details[: _MOST - 1]}…"
