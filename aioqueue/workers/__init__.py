"""Workers that prepare items: their job, flow control, retries and timing."""
