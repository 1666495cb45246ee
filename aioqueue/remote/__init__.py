"""The contract between processes: failures on their way, and the members of a coordinator.

Everything here works by callbacks, and knows no event loop, no socket and no Ray. What carries the
calls is a transport: the socket of `aioqueue.sharing`, or the actors of `aioqueue.ray`.
"""
