"""What must hold for every rule of the table: asserted of a row, by the measurements of `measure`."""
