"""How costs grow with the work: each module of this folder has rows; see `benchmarks.growth.rows`."""
