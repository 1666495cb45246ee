"""A hook of MkDocs: the pages say which version they are of."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any


def version_in(root: Path) -> str:
    """The version of the package beside the docs, which is not imported."""
    for node in ast.parse(
        (root / "aioqueue" / "__init__.py").read_text("utf-8")
    ).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__version__"
        ):
            return str(ast.literal_eval(node.value))
    raise LookupError("aioqueue/__init__.py has no __version__")


def on_config(config: Any) -> Any:
    """Write the version at the foot of each page."""
    version = version_in(Path(config.config_file_path).parent)
    config.copyright = f"aioqueue {version} · {config.copyright}"
    return config
