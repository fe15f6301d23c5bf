"""The proof: runs every guard with its fix applied and reverted, and judges the outcomes."""
