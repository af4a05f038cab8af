"""Fit the rational approximations of the normal quantile in `trimtab.core.exact_math`, and print them with their errors.

    python docs/make_normal.py

Linearised least squares at Chebyshev points, weighted anew by the denominator found, in 60 digits: the relative error
is then nearly level over the interval. Needs mpmath.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60
MIDDLE, TAIL = mp.mpf("0.425"), mp.mpf("1.6")


def upper_quantile(q: mp.mpf) -> mp.mpf:
    """The x which a standard normal number is above with probability q < 1/2, by Newton's method."""
    x = mp.sqrt(-2 * mp.log(2 * q)) * mp.mpf("0.9")
    for _ in range(60):
        tail = mp.erfc(x / mp.sqrt(2)) / 2
        step = mp.log(tail / q) * tail * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x += step
        if abs(step) < mp.mpf(10) ** -50:
            break
    return x


def rational(
    f: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, over: int, under: int
) -> tuple[list[mp.mpf], list[mp.mpf], mp.mpf]:
    """Numerator and denominator (constant term first, 1 below) of these degrees, and the largest relative error."""
    unknowns = over + under + 1
    points = 6 * unknowns
    x = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * points)) for i in range(points)]
    y = [f(each) for each in x]
    weights = [mp.mpf(1)] * points
    for _ in range(10):
        A, b = mp.matrix(points, unknowns), mp.matrix(points, 1)
        for i in range(points):
            scale = weights[i] / y[i]
            for j in range(over + 1):
                A[i, j] = scale * x[i] ** j
            for j in range(1, under + 1):
                A[i, over + j] = -scale * y[i] * x[i] ** j
            b[i] = weights[i]
        found = list(mp.lu_solve(A, b))
        top, bottom = found[: over + 1], [mp.mpf(1), *found[over + 1 :]]
        weights = [1 / abs(mp.polyval(bottom[::-1], each)) for each in x]
    between = [low + (high - low) * i / 400 for i in range(401)]
    errors = [abs(mp.polyval(top[::-1], e) / mp.polyval(bottom[::-1], e) / f(e) - 1) for e in between]
    return top, bottom, max(errors)


def in_the_middle(z: mp.mpf) -> mp.mpf:
    """The quantile over p - 1/2, as a function of 0.425² - (p - 1/2)²."""
    q = mp.sqrt(max(MIDDLE**2 - z, mp.mpf(10) ** -40))
    return upper_quantile(mp.mpf(1) / 2 - q) / q


def main() -> None:
    """Print both fits."""
    first = mp.sqrt(-mp.log(mp.mpf(1) / 2 - MIDDLE)) - TAIL
    last = mp.sqrt(53 * mp.log(2)) - TAIL
    fits = {
        "centre": rational(in_the_middle, mp.mpf(0), MIDDLE**2, 7, 7),
        "tail": rational(lambda r: upper_quantile(mp.exp(-((r + TAIL) ** 2))), first, last, 8, 7),
    }
    for name, (top, bottom, error) in fits.items():
        print(f"{name}: relative error {mp.nstr(error, 2)}")
        print("  over ", *map(float, top))
        print("  under", *map(float, bottom))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    main()
