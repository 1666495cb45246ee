"""The operating system and the interpreter: locks, forks, file descriptors, processors."""
