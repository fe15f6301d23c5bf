"""The audit of a release's kernels for integer overflows and accesses past tensors."""
