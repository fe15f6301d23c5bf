"""`unfix zoo`: every model architecture, tiny, on the virtual GPU, compared with transformers."""
