"""Pipelines: stages become nodes, queues and workers, which epochs go through."""

from __future__ import annotations
