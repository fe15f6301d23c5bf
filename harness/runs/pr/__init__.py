"""`unfix pr`: what a change of SGLang does, by the runs of the other kinds on both of its ends."""
