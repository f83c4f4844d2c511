"""Independent references. Nothing here imports harness.kernels or harness.subjects."""
