"""Reports of a proof."""
