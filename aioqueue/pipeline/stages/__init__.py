"""The stages of a pipeline: one file for each, with its description and its node."""
