"""unfix: take a fix back out of a real SGLang and see which tests notice."""

__version__ = "0.1.0"
