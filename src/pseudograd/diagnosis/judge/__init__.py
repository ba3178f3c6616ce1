"""The judging half of a diagnosis: one file for each finding, and the sentences that they share."""
