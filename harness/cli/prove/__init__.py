"""`unfix prove` and `unfix lifecycle`: runs of guards over releases."""
