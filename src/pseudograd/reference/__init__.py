"""Every rule written a second time, for one number. The tests compare both. These files import neither torch nor the rest of pseudograd."""
