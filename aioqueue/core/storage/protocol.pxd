# How the fields of a compiled `Held` are kept.

cdef class Held:
    cdef public object parts, tickets, out, single
    cdef public Py_ssize_t count
    cdef public bint in_place
