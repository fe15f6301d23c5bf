"""`unfix rehearse`: a deployment at full size on the virtual GPU, its launches under check."""
