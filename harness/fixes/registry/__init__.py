"""Toggle files: their schema, a reader and a writer, and the catalogue of all toggles."""
