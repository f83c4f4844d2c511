"""Exhaustive proofs where the input space is finite: the fused operator against stock's composition, pair by pair."""
