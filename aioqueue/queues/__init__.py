"""The four queues, each with an async face and a blocking face."""
