"""CUDA C++ kernels: built without a GPU, their launches caught and run on this CPU."""
