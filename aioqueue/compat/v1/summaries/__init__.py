"""Summaries: ops that do nothing, unless something is installed that writes event files."""
