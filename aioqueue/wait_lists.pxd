# How the fields of compiled `Lines` are kept, and how other compiled files call them.

from aioqueue.attempts cimport Attempt, Put, Take

cdef class Lines:
    cdef public object enqueues, dequeues, until_closed, places, promised, granted

    cpdef line_of(self, Attempt attempt)
    cpdef first_dequeue(self)
    cpdef remove(self, Attempt attempt)
    cpdef give_place(self, Put attempt, weight)
    cpdef leave_place(self, Put attempt)
