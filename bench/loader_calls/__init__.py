"""Calls of SGLang's CUDA kernels that no suite drives: one for each loader, small, on the GPU."""
