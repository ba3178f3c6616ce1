"""`compare`'s report: from outcomes, of tasks or of a comparison, to one folder with their words and pictures; or again from there."""
