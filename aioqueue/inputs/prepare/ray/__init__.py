"""Preparing on a Ray cluster: the actors there, and who talks to them here."""
