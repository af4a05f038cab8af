"""A reaction-diffusion equation, its solver, and a learned flow of its solutions."""
