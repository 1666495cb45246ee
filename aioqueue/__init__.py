"""x"""
from aioqueue.queues.aio import *
