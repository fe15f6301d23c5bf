"""`unfix fuzz`: the search for failures within a budget of time."""
