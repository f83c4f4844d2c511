"""The candidate: Triton kernels of this repository. Imports nothing else of it."""
