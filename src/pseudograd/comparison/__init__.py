"""Your own case: train what you like with each rule's clamp, over seeds, and say which differ. `compare` and `tune` stand in the files
of their names.
"""
