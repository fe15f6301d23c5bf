"""What checks report, whatever found it: its kind, its words, and the exception that is raised."""
