"""`unfix bisect`: the search for the fix behind a symptom."""
