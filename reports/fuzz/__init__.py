"""A fuzzing run, shown."""
