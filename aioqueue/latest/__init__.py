"""`Latest`: one value, its newest version, for any number of readers."""
