"""An evaluation, shown."""
