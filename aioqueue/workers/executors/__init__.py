"""Where workers run: tasks, threads, processes, subinterpreters, Ray. One file for each."""
