"""SGLang installations under test: their sources, their environments, their stand-ins."""
