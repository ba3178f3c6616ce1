"""What must hold for every rule of the table: asserted of a case, by the measurements of `measure`."""
