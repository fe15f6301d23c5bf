"""`unfix test`: the project's own tests, in parts that run concurrently."""
