"""What is known of the functions of torch: one row for each, the eras, and the one door to private names."""
