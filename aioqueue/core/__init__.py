"""The rules of queues. Nothing here waits, reads a clock, or knows of event loops and threads."""
