"""Stands in for torch_npu; kept off the path by default, since libraries probe for an NPU by it."""

from harness.releases.standins._refusing import stand_in

stand_in(__name__)
