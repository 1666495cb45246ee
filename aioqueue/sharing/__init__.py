"""Queues and other objects that the processes of one machine share.

The process that made an object owns it, and serves the others from one thread. Another process has
a *handle*: the same face, over a connection instead of a machine.
"""
