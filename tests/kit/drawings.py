"""The drawing of a pipeline in the documentation: what the first block of its page makes.

``python -m tests.kit.drawings`` writes it anew, in a folder with what ``examples/shapes.py shapes``
has drawn; `tests/project/test_docs.py` checks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pipelines.md"
PICTURE = ROOT / "docs" / "images" / "pipeline.svg"


def drawing_of_the_page() -> str:
    """The SVG of the pipeline that the page begins with."""
    _, block, _ = PAGE.read_text(encoding="utf-8").split("```", 2)
    names: dict[str, Any] = {}
    exec(compile(block.removeprefix("python\n"), str(PAGE), "exec"), names)
    drawing: str = names["train"]._repr_svg_()
    return drawing


if __name__ == "__main__":
    PICTURE.write_text(drawing_of_the_page(), encoding="utf-8")
    print(f"wrote {PICTURE}")
