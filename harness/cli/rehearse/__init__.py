"""`unfix rehearse`: a deployment at full size without a GPU."""
