"""The kink table: which gradient torch, JAX and TensorFlow give where a function has no slope, or a tie."""
