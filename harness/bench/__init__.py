"""Timing: paired, inside CUDA graphs, both sides in one process."""
