# How the fields of a compiled `GilLock` are kept, and how other compiled files call it.

cdef extern from "pythread.h":
    unsigned long thread_ident "PyThread_get_thread_ident" () noexcept nogil

cdef class GilLock:
    cdef object _ring, _listen
    cdef readonly unsigned long _owner
    cdef bint _rings_on_release
    cdef readonly Py_ssize_t _depth, _waiting

    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef int release(self) except -1
    cpdef run(self, call, tuple args, dict kwargs)
    cpdef bint _is_owned(self) except -1
    cdef int _wait(self, unsigned long me) except -1
    cdef int _sleep(self, unsigned long me) except -1

cdef class _AnyLock(GilLock):
    cdef object _lock

    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef int release(self) except -1
    cpdef bint _is_owned(self) except -1
