"""Nodes: how rows flow from stage to stage, how they are named, and how they are made again."""
