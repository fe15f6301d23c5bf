"""What a suite needs beside pytest: guards, devices, and saying that something is not here."""

from harness.guards.absence import not_here

__all__ = ["not_here"]
