"""Feasible sets with their projections, one module each."""
