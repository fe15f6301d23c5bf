"""`unfix kernels`: every kernel of a release, who reaches it, and what would."""
