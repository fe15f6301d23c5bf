"""From a fix to a toggle: a diff read, told as two forms, followed through all releases."""
