# How the fields of a compiled `FastPath` and `MachineState` are kept, and how its moves count: the
# bounds are numbers, the lock is called as C.

from aioqueue.core.attempts cimport Attempt, WaitLists
from aioqueue.system.locks cimport GilLock, thread_ident
from aioqueue.core.meters cimport Durations

cdef class FastPath:
    cdef public object storage, _lock, _enter, _is_held_here, _put, _take
    cdef public GilLock _latch
    cdef public double _bound_in, _bound_out
    cdef public Py_ssize_t _enqueued

cdef class MachineState(FastPath):
    cdef public object kind, name, max_bytes
    cdef public object _keep, _claimed, _given_capacity, _max_bytes
    cdef public double _capacity  # a number, as it is read without the lock and may change
    cdef public object _state, _cause, _beginning, _standby_put, _standby_take
    cdef public tuple observers
    cdef public object _enqueues, _dequeues, _places, _granted
    cdef public dict _waiting
    cdef public WaitLists _wait_lists
    cdef public Durations _enqueue_waits, _dequeue_waits
    cdef public bint _batch_waits, _brings_sizes, _progressive, _eager, _claims_disabled
    cdef public Py_ssize_t _finished
    cdef public list _returned, _writers
    cdef public object arrivals

    cpdef _take_in_arrivals(self)
    cpdef _claims(self)
    cpdef _room(self)
    cpdef _limit(self)
    cpdef _claims_to_come(self)
    cpdef _rows_to_enter(self, Attempt attempt)
    cpdef _shortage(self)
    cpdef _available(self)
    cpdef _count_wait(self, Attempt attempt, double waited)
    cpdef _call_observers(self)
    cpdef _admit_standby(self)
    cpdef _leave_standby(self, Attempt attempt)
