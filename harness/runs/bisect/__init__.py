"""Which fix a symptom is about: searches over toggles, releases and commits."""
