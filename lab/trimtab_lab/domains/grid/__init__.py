"""AC operating points of a power grid, sampled by a learned flow and projected by IPOPT."""
