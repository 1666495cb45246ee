"""Positions of pipelines: what ``state_dict()`` returns, and what ``resume=`` takes."""
