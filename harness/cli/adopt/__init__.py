"""`unfix adopt`: a toggle from a fix."""
