"""What happens in a program, seen from outside: its lines, the nodes that autograd makes, and the start of each backward."""
