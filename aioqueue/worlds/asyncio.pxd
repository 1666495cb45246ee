# How the fields of a compiled `AsyncioWaker` are kept.

cdef class AsyncioWaker:
    cdef public object _lock, _loop, _notified, notify, next_round, _budget_left, _deferred
    cdef public bint _is_scheduled, two_step
