"""A run as a person sees it: tables, pages, pictures and traces."""

from __future__ import annotations
