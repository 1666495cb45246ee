"""How costs grow with the work: each module of this folder adds rows (see `rows.py`)."""
