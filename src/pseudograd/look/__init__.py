"""Look at a backward rule: gradient, plot, audit, each in the file of its name."""
