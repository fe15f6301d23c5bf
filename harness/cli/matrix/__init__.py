"""`unfix matrix`: plans and runs of a matrix of options."""
