"""unfix: take a fix back out of a real SGLang and see which tests notice.

PYTEST_DONT_REWRITE: pytest would warn of a package with a plug-in that is imported before it.
"""

__version__ = "0.1.0"
