"""Kernels in PTX: read into the graph, run on this CPU, checked."""
