"""Items on their way through a pipeline: their forms, their provenance, and where a run stands."""
