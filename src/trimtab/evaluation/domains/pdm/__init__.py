"""Trajectories among obstacles from a learned annealed-Langevin sampler, as in Projected Diffusion Models."""

from .domain import AnnealedLangevin, Quality, sample, trajectory_quality
from .model import Model, Settings, load_model, save_model
from .planner import clearance, extra_circles, random_map, shipped_map, shipped_maps, start_goal_pairs

__all__ = [
    "AnnealedLangevin",
    "Model",
    "Quality",
    "Settings",
    "clearance",
    "extra_circles",
    "load_model",
    "random_map",
    "sample",
    "save_model",
    "shipped_map",
    "shipped_maps",
    "start_goal_pairs",
    "trajectory_quality",
]
