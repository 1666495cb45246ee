"""Worker processes: start and end them, talk to them, and share memory with them.

`prepare` and the batchers use this package. They decide what a process does and what its death
means.
"""

from __future__ import annotations
