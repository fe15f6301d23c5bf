"""Guards: pytest tests that run on both sides of a toggle, applied and reverted."""

from harness.guards.not_applicable import skip_not_applicable

__all__ = ["skip_not_applicable"]
