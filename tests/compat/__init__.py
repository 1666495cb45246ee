"""Tests of the TensorFlow 1 names."""
