"""What all rooms may use: checks of arguments, texts, hints, tracebacks, public names, extras, JSON
files."""
