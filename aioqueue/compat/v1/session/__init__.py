"""Sessions: how fetches become plans, how plans run, and what a session keeps between runs."""
