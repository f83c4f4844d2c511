"""Where it runs: the lanes, the repaired interpreter, what is on this machine."""
