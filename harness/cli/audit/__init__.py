"""`unfix audit`: finds the integer overflows in the kernels of a release."""
