"""`unfix report`: shows stored runs, one by one and over the nights."""
