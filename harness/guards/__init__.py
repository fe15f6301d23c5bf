"""What a suite needs beside pytest: guards, devices, and saying that something is not here."""

from harness.guards.not_applicable import skip_not_applicable

__all__ = ["skip_not_applicable"]
