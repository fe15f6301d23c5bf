"""Finding code by its structure: patterns, the scopes they are looked for in, and states."""
