"""How a diagnosis is shown: text, JSON, one HTML page and metrics."""
