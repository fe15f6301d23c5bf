"""The status of a toggle on a release, and the nearest code if the toggle is stale."""
