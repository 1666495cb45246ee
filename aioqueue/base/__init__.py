"""What all rooms may use: checks, texts, hints, tracebacks, public names, extras, JSON files."""
