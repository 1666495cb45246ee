"""Mutation testing: changes one thing at a time, and looks whether a test notices.

See `docs/mutation.md` for how it is used and what it has shown. Neither a mutated module nor its
tests are imported once per mutant: each mutant is a fork of a process that has collected all tests,
in which the code of one function is exchanged. So what is decorated is mutated like all the rest.
"""
