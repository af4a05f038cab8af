"""A reaction–diffusion equation, its solver, and a flow-matching model of its solutions."""
