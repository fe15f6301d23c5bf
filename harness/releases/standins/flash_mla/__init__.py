"""Stands in for flash_mla, the wheel to which SGLang moved the FlashMLA kernels in 0.5.23."""

from _refusing import stand_in

stand_in(__name__)
