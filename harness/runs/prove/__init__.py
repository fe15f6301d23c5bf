"""The proof: every guard with its fix applied and reverted, in its own process, and judged."""
