"""Comparing: bytes, steps and bounds; guarded memory; graph replay; the explanation of a mismatch."""
