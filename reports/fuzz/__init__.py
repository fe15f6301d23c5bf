"""Reports of a fuzzing run."""
