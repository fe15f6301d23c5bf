"""Matrix runs, kept."""
