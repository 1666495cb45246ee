"""The benchmark suite: aioqueue beside its peers and its limits, as ratios within one run.

Run it with ``python -m benchmarks`` (after ``pip install '.[bench]'``). It prints, and writes
``docs/benchmarks.md`` and its picture; it asserts nothing.
"""
