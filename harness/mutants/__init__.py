"""Faults as data, and what plants one of them in a copy of a source tree. Running suites against it is ci's work."""
