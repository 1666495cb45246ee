"""TensorFlow's queues: the ops that scripts build, and what is behind them in a session."""
