"""The CPU's back end: kernels compiled from their graphs for this machine, with all checks."""
