"""The rows of the table: one `Form` for each function of torch, in a file for each kind of function."""
