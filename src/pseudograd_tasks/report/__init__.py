"""The report of `compare`: from the outcomes of tasks, or from a comparison, to a folder with texts, numbers and pictures."""
