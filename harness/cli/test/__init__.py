"""`unfix test`: runs the project's own tests, in concurrent parts."""
