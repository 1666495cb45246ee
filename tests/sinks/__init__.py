"""Tests of `Pipeline.write`, of its formats, and of what is cached."""
