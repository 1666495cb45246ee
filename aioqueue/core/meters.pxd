# How the fields of compiled `Durations` are kept.

cdef class Durations:
    cdef public list _counts
    cdef public double longest, seconds

    cpdef add(self, double seconds, object weight=*)
