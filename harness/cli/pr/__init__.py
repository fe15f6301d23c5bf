"""`unfix pr`: what a change of SGLang does."""
