"""Data-parallel ranks: what each has delivered, padding, and merged positions."""
