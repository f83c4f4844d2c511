"""Machine code: cross-compilation to sm_90, disassembly, instruction hashes."""
