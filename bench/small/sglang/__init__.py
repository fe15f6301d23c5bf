"""A small package of our own under the one name that `unfix` patches, to be mutated."""
