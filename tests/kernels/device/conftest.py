"""These tests run on the virtual GPU, which stays in their process."""

from harness.device import installation

installation.install("H100")
