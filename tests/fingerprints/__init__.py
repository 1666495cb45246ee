"""Tests of what caches, resumed writes and positions compare."""
