"""LLVM for both compilers of kernels: its text while it is written, its numbers, compiled code."""
