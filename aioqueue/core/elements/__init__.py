"""What an element is: its spec, its components, trees of values, and who owns a value."""
