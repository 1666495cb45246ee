# How the fields of a compiled `MachineState` are kept, and how its moves count.

from aioqueue.attempts cimport Attempt, Lines
from aioqueue.meters cimport Durations
from aioqueue.fast_path cimport FastPath

cdef class MachineState(FastPath):
    cdef public object kind, name, max_bytes
    cdef public object _keep, _claimed, _given_capacity, _max_bytes
    cdef public double _capacity  # a number, as it is read without the lock and may change
    cdef public object _state, _cause, _beginning
    cdef public tuple onlookers
    cdef public object _enqueues, _dequeues, _places, _granted
    cdef public dict _waiting
    cdef public Lines _lines
    cdef public Durations _enqueue_waits, _dequeue_waits
    cdef public bint _batch_waits, _brings_sizes, _progressive, _eager
    cdef public list _returned

    cpdef _claims(self)
    cpdef _room(self)
    cpdef _limit(self)
    cpdef _claims_to_come(self)
    cpdef _missing(self)
    cpdef _available(self)
    cpdef _count_wait(self, Attempt attempt, double waited)
