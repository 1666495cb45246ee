"""What examples look like, and what is made of them: batches, Arrow columns, copies on devices."""
