"""Reports of `unfix kernels`."""
