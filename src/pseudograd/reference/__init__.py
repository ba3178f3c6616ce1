"""Every rule once more, for one number at a time. These files import neither torch nor pseudograd; the tests compare."""
