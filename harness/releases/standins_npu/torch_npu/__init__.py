"""Stands in for torch_npu; not on the path by default, since libraries detect an NPU by it."""

from harness.core.refusing_module import stand_in

stand_in(__name__)
