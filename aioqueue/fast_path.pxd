# How the fields of a compiled `FastPath` are kept: the bounds are numbers, its lock is called as C.

from aioqueue.locks cimport GilLock

cdef class FastPath:
    cdef public object storage, _lock, _enter, _is_held_here, _put, _take
    cdef public GilLock _latch
    cdef public double _bound_in, _bound_out
    cdef public Py_ssize_t _enqueued
