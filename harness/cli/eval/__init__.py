"""`unfix eval`: the comparison of a served model's answers."""
