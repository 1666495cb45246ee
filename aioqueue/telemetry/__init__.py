"""What is slow, what is stuck, and what to do about it: numbers, their reading, ways to look."""

__all__ = ()
