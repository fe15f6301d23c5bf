"""`unfix report`: stored runs again, one by one and over the nights."""
