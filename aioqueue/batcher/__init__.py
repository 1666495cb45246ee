"""Batch calls: many callers await one result each, and a function processes them in batches.

The core puts calls into batches and gives each caller its result; both faces share it. The workers
call the function, in tasks, threads or processes. The faces only wait.
"""

from __future__ import annotations
