"""SGLang installations under test: their sources, environments and stand-ins."""
