"""What stages, workers and pipelines need of a source; `kinds` has the sources that users make."""

from __future__ import annotations
