# How the fields of compiled attempts and `WaitLists` are kept, and how other files call `WaitLists`.

from aioqueue.core.storage.protocol cimport Held

cdef class Attempt:
    cdef public object state, error, waker, waiter, host, owner
    cdef public bint waits
    cdef public double began

cdef class Put(Attempt):
    cdef public object row

cdef class PutMany(Attempt):
    cdef public object columns, n, done

cdef class Take(Attempt):
    cdef public Held held
    cdef public object n
    cdef public object borrower
    cdef public bint up_to, single, expired, leased, peeks

cdef class UntilClosed(Attempt):
    pass

cdef class UntilDone(Attempt):
    pass

cdef class WaitLists:
    cdef public object enqueues, dequeues, until_closed, until_done, places, promised, granted

    cpdef list_of(self, Attempt attempt)
    cpdef _not_yet_taken(self)
    cpdef first_dequeue(self)
    cpdef remove(self, Attempt attempt)
    cpdef give_place(self, Put attempt, weight)
    cpdef leave_place(self, Put attempt)
