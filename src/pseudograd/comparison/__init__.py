"""Compare rules on the user's own training: `compare` and `tune`, each in the file of its name.

variants (what is compared) < training (one function of the user's) < runs (who makes them, and where they are stored) < verdicts (which
variants differ, by statistics) < text, picture, comparison (the result) < compare, tune.
"""
