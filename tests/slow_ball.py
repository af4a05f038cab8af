"""Constraints that hang, raise or die for certain states, in a module that other processes can import."""

from __future__ import annotations

import os
import time

import torch

import trimtab as tt
from trimtab.constraints import Ball


class Slow(tt.Constraint):
    """The unit ball; it never returns, raises or ends its process for states that start with 9, 8 or 7."""

    def project(self, x):
        first = x[:, 0].round()
        if bool((first == 9).any()):
            time.sleep(3600)
        if bool((first == 8).any()):
            raise ArithmeticError("a state starts with 8")
        if bool((first == 7).any()):
            os._exit(1)
        return Ball(1.0).project(x)

    def defect(self, x):
        return Ball(1.0).defect(x)

    def take(self, rows):
        return self


def shrunk(x):
    """Project onto the unit ball; like `Slow`, never return for states that start with 9."""
    return Slow().project(x)


def scaled(x, sigma):
    """Project onto the ball of radius sigma, a number or one per sample."""
    return x / (x.norm(dim=1) / sigma).clamp(min=1)[:, None]


def scaled_unless_9(x, sigma):
    """Do the same, but never return for states that start with 9."""
    shrunk(x)
    return scaled(x, sigma)


def like_before(x, previous):
    """Project onto the ball that the previous state was on the border of."""
    return scaled(x, previous.norm(dim=1))


def off_before(x, previous):
    """Return the distance to that ball."""
    return scaled_defect(x, previous.norm(dim=1))


def scaled_defect(x, sigma):
    """Return the distance to that ball."""
    return (x.norm(dim=1) - sigma).clamp(min=0)


def doubled_unless_7(number):
    """End the process for a 7, after the other tasks had time to be answered."""
    if number == 7:
        time.sleep(1)
        os._exit(1)
    return 2 * number


def asleep(x):
    """Never return."""
    time.sleep(3600)
    return x


def rows_of_zeros(x, sigma=None):
    """Return a defect of 0 for a tree or an array of any library."""
    return torch.zeros(len(x["p"] if isinstance(x, dict) else x))
