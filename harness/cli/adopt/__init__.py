"""`unfix adopt`: writes a toggle from a fix."""
