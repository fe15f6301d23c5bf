"""`unfix audit`: every kernel of a release, where its integers wrap."""
