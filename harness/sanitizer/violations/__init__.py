"""What checks report, whatever found it: its kind, its words, and the exception that is raised."""

# By name, for processes that may never have imported it: a traceback begins a line with it.
EXCEPTIONS_MODULE = f"{__name__}.exceptions"
