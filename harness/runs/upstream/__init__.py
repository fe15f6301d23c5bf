"""A finding as a pull request: its patch, its test without and with the patch, its text."""
