"""`unfix test`: the parts that this project's own tests run in, side by side."""
