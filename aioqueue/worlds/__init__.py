"""Worlds: how a caller sleeps until its attempt ends, in asyncio, in trio and in threads.

Only this package knows how a world sleeps and wakes. A new world needs one more `Waker`.
"""
