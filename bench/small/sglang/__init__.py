"""A small package to be mutated, under the only name that `unfix` patches."""
