"""Storages: how a queue keeps its rows, and in which order they leave.

All storages implement one protocol (`protocol`) and pass one contract test suite. Each kind of
queue chooses the one that fits its elements.
"""
