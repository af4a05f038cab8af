"""Trajectories that avoid obstacles: the geometry once, and the solvers that share it."""

from trimtab_lab.obstacles.avoid import AvoidObstacles, Obstacles, scattered_circles

__all__ = ["AvoidObstacles", "Obstacles", "scattered_circles"]
