"""The proof: models, recorded histories, forced schedules, and broken builds to catch."""
