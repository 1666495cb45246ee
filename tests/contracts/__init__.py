"""The questions that each kind of the package is asked, one file a question.

Nothing is listed here: the kinds come from the registries (`tests.kit.kinds`), and a small example
of each from `tests.kit.examples`. A new kind is asked everything as soon as its class exists.
"""
