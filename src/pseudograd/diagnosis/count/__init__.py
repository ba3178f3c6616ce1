"""The counting half of a diagnosis: what each node, parameter and optimiser step did, as numbers."""
