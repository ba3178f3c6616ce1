"""A diagnosis as text, JSON, one HTML page and metrics."""
