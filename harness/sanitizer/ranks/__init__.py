"""Ranks on one machine: forks with a virtual GPU each, whose collectives move real bytes."""
