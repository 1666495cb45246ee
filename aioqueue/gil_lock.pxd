# How the fields of a compiled `GilLock` are kept, and how other compiled files call it.

# Whatever builds it: `hatch_build.py` says this before, and in more words.
cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #error "aioqueue: the compiled core needs the global interpreter lock: docs/howto/compiled.md"
    #endif
    """

cdef extern from "pythread.h":
    unsigned long thread_ident "PyThread_get_thread_ident" () noexcept nogil

cdef class GilLock:
    cdef object _shut, _open, _is_shut
    cdef unsigned long _owner
    cdef readonly Py_ssize_t _depth, _waiting

    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef int release(self) except -1
    cpdef bint _is_owned(self) except -1
    cdef int _wait(self) except -1
    cdef int _sleep(self) except -1

cdef class _AnyLock(GilLock):
    cdef object _lock

    cpdef bint acquire(self, bint blocking=*) except -1
    cpdef int release(self) except -1
    cpdef bint _is_owned(self) except -1
