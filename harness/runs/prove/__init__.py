"""The proof: every guard with its fix in and out, each in a process of its own, judged and kept."""
