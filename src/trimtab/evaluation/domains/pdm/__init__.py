"""The learned sampler: annealed Langevin over trajectories, as in Projected Diffusion Models."""

from .checkpoint import load_model, save_model
from .maps import clearance, extra_circles, random_map, shipped_map, shipped_maps
from .model import Model, Settings
from .pairs import start_goal_pairs
from .quality import Quality, sample, trajectory_quality
from .sampler import AnnealedLangevin

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
