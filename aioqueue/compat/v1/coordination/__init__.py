"""Stopping together, and keeping queues filled, with TensorFlow 1's names."""
