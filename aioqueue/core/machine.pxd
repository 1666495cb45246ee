# How the rules of a compiled `Machine` call each other.

from aioqueue.core.attempts cimport Attempt, Put, PutMany, Take
from aioqueue.core.fast_path cimport MachineState

cdef class Machine(MachineState):
    cpdef _flush(self, dict wakers)
    cpdef _settle(self)
    cpdef _fail_self_waits(self, dict wakers)
    cpdef bint _advance_enqueue(self, Attempt attempt, dict wakers) except -1
    cpdef bint _advance_dequeue(self, Take attempt, dict wakers) except -1
    cpdef _rows_for(self, Take attempt, available)
    cpdef bint _bytes_block_enqueue(self, Take attempt) except -1
    cpdef _claim_for(self, Take attempt)
    cpdef bint _may_proceed(self, Attempt attempt) except -1
    cpdef bint _wait_is_over(self, Attempt attempt, dict wakers) except -1
    cpdef bint _join_is_over(self, Attempt attempt, dict wakers) except -1
    cpdef _end_joins(self, dict wakers)
    cpdef bint _ends_at_once(self, Attempt attempt) except -1
    cpdef bint _may_join_places(self, Attempt attempt) except -1
    cpdef bint _in_two_steps(self, Attempt attempt) except -1
    cpdef _disable_fast_path(self)
    cpdef _insert_row(self, Put attempt)
    cpdef _insert_rows(self, PutMany attempt, n)
    cpdef _remove_attempt(self, Attempt attempt)
    cpdef _release_rows(self, Attempt attempt)
    cpdef _finish(self, Attempt attempt, state, dict wakers)
    cpdef _set_bounds(self)
    cpdef double _set_limits(self, double bound_in) except? -2
    cpdef _take_in_late_arrivals(self, dict wakers)
