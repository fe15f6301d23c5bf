"""The toggle files: what one may say, how one is read, and how one is found by its id."""
