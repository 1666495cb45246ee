"""Readers: ops that take file names from a queue and read the records of the files."""
