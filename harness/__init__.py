"""What judges: contracts, oracles, subjects, evidence and lanes. Imports nothing from ci or suites."""
