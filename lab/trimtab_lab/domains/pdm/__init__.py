"""Trajectories among obstacles from a learned annealed-Langevin sampler, as in Projected Diffusion Models."""
