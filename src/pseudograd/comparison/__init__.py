"""Compare rules on the user's own training: `compare` and `tune`, each in the file of its name.

The modules, each of which imports only those before it: variants (what is compared), training (one function of the user), runs (the
processes that make them and the folder that stores them), verdicts (which variants differ, by statistics), text, picture, comparison (the
result), compare, tune.
"""
