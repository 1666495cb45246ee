"""The fork server: it imports what worker processes need, once, and forks them (Linux)."""
