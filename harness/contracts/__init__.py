"""One file per operator: what it promises, and its catalogue of cases."""
