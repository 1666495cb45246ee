"""The proof: nothing lost, nothing twice, no hang; and that it would be noticed.

Three ways to look for mistakes, each of which sees what the others cannot:

* `test_model`: random programs of all operations, played on a stage where time stands still, end as
  a naive reference says. Finds wrong rules.
* `test_linearizability`: what real threads and event loops do to a queue at once looks as if they
  had taken turns. Finds what nobody thought of.
* `test_scheduling`: every order of grant, wake, cancellation, timeout and close around one
  hand-over, one by one. Finds races that take one bad moment in a million.

`seeded_bugs` makes broken builds and sees who catches them. `effort` tells how to look for longer.
"""
