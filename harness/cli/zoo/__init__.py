"""`unfix zoo`: every model architecture on the virtual GPU."""
