"""What the programs that tests start say on stderr."""

from __future__ import annotations

import re

_SLOW_CALLBACK = re.compile(r"^Executing <.*> took \d+\.\d+ seconds\n", re.MULTILINE)


def complaints(stderr: str) -> str:
    """What a program said on stderr, without what only a loaded machine makes it say.

    With `-X dev`, asyncio remarks on each callback that took 100 ms, be it only because another
    process had the processor.
    """
    return _SLOW_CALLBACK.sub("", stderr)
