"""Elementary functions of a number whose bits depend on that number alone.

"A sample's rollout is the same in any batch, in any order, with any number of workers" holds to the last bit because
everything the synthetic domains compute is made of operations that IEEE 754 rounds exactly: + - * / and square roots,
comparisons, and integer operations on bits. They have one right answer, so it does not matter where in a batch an
element stands, how many threads share the work, or what processor does it. These have not, and are kept out:

- exp, sin, atan2, sigmoid, pow and the like of torch and numpy: the vector body of a loop and its scalar tail are two
  implementations that round differently, so the last elements of a batch come out otherwise than the first. This module
  has its own, of exact operations.
- Sums, products of matrices, einsum: the order of the terms depends on the shape of the batch. Terms are added one by
  one, or with `sum_rows`.
- Operations that do two things, such as addcmul, lerp, cross, or add with alpha: some kernels round once, some twice.

Everything is computed in float64. No gradient flows through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "arctan2",
    "batch_first",
    "batch_last",
    "exp",
    "log",
    "logistic",
    "normal_quantile",
    "product",
    "sin_cos",
    "sqrt",
    "stack",
    "sum_rows",
]

Array = Any
"""Numbers in a numpy array or in a tensor; the functions below take either and answer in kind."""


def batch_last(x: Tensor) -> Array:
    r"""The entries of states with the samples last, (n, \*event) to (\*event, n), where loops run fast.

    On the host it is a numpy array, whose calls cost a third of torch's, elsewhere a tensor.
    """
    entries = x.detach().movedim(0, -1).contiguous()
    return entries.numpy() if x.is_cpu else entries


def batch_first(entries: Array) -> Tensor:
    r"""The states with these entries, (\*event, n) to (n, \*event)."""
    x: Tensor = torch.from_numpy(entries) if isinstance(entries, np.ndarray) else entries
    return x.movedim(-1, 0).contiguous()


def product(a: Array, b: Array) -> Array:
    """The product of matrices, (i, 3, n) and (3, k, n) to (i, k, n), its sums written out."""
    return a[:, 0, None] * b[0] + a[:, 1, None] * b[1] + a[:, 2, None] * b[2]


def stack(parts: Sequence[Array]) -> Array:
    """The arrays (…) as one, (len(parts), …)."""
    return np.stack(parts) if isinstance(parts[0], np.ndarray) else torch.stack(list(parts))


def sqrt(x: Array) -> Array:
    """The square root, (…)."""
    return np.sqrt(x) if isinstance(x, np.ndarray) else x.sqrt()


def sum_rows(x: Tensor) -> Tensor:
    """The sum of each row, (n, d) to (n,), by halves: the order depends on d alone, and the error grows as log d."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        rest = x[:, half:]
        head = x[:, : rest.shape[1]] + rest
        x = head if half == rest.shape[1] else torch.cat([head, x[:, half - 1 : half]], dim=1)
    return x[:, 0] if x.shape[1] else x.new_zeros(len(x))


def exp(x: Array) -> Array:
    """The exponential of x, (…); x is taken to be in [-708, 709], where the result is a normal number."""
    return _by_element(_exp, x)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), (…).

    Example:
        >>> logistic(torch.tensor([0.0]))
        tensor([0.5000])
    """
    return _by_element(lambda xp, x: 1 / (1 + _exp(xp, -x)), x)


def log(x: Array) -> Array:
    """The natural logarithm of normal numbers above 0, (…)."""
    return _by_element(_log, x)


def sin_cos(x: Array) -> Array:
    """Sine and cosine, (…) to (2, …); to an absolute error of 2e-16 for x up to 6000."""
    return _by_element(_sin_cos, x)


def arctan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y) in [-pi, pi], (…) twice to (…); 0 at the origin."""
    return _by_element(_arctan2, y, x)


def normal_quantile(p: Array) -> Array:
    """The inverse of the standard normal distribution function, (…), for p from 2**-53 to 1 - 2**-53."""
    return _by_element(_normal_quantile, p)


# ---------------------------------------------------------------------------- how they are applied

_CHUNK = 4096  # numbers at a time: their intermediate values stay in the cache


def _by_element(function: Callable[..., Any], *arguments: Array) -> Array:
    """Apply `function(numpy or torch, *flat float64 arrays)`, in numpy on the host."""
    like = arguments[0]
    if isinstance(like, Tensor):
        if like.is_cpu:
            found = _by_element(function, *(argument.detach().numpy() for argument in arguments))
            return torch.from_numpy(found)
        answer = function(torch, *(argument.detach().double().reshape(-1) for argument in arguments))
        return answer.to(like.dtype).reshape(*answer.shape[:-1], *like.shape)
    flat = [np.asarray(argument, dtype=np.float64).reshape(-1) for argument in arguments]
    with np.errstate(all="ignore"):  # what is not a number stays so, without a warning
        if like.size <= _CHUNK:
            answer = function(np, *flat)
        else:
            parts = range(0, like.size, _CHUNK)
            answer = np.concatenate([function(np, *(a[i : i + _CHUNK] for a in flat)) for i in parts], axis=-1)
        return answer.astype(like.dtype, copy=False).reshape((*answer.shape[:-1], *like.shape))


def _polynomial(coefficients: Sequence[Any], x: Any) -> Any:
    """coefficients[0] + coefficients[1] x + …; by Horner's rule."""
    total = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total *= x
        total += coefficient
    return total


# ---------------------------------------------------------------------------- the functions

_SHIFT = 1.5 * 2.0**52  # added to a number, it leaves the nearest integer in the low bits of the sum
_LN2_HIGH = math.ldexp(5814539, -23)  # 23 bits of log 2, so that a multiple by an exponent is exact
_LN2_LOW = 1.1730463525082348e-07  # the rest
# r coth(r / 2) as a series in r²: twice the Bernoulli numbers over factorials
_COTH = (2.0, 1 / 6, -1 / 360, 1 / 15120, -1 / 604800, 1 / 23950080, -691 / 653837184000)


def _exp(xp: Any, x: Any) -> Any:
    x = x.clip(-708.0, 709.0)
    shifted = x * 1.4426950408889634 + _SHIFT
    k = shifted - _SHIFT
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW  # |r| <= log(2) / 2
    power = 1 + 2 * r / (_polynomial(_COTH, r * r) - r)  # e^r - 1 = 2 r / (r coth(r / 2) - r)
    return power * ((shifted.view(xp.int64) + 1023) << 52).view(xp.float64)


_SQRT_HALF = 0x3FE6A09E667F3BCD  # the bits of the square root of a half
_ARTANH = tuple(1 / (2 * k + 1) for k in range(11))


def _log(xp: Any, x: Any) -> Any:
    bits = x.view(xp.int64)
    k = (bits - _SQRT_HALF) >> 52  # x = m 2^k with m between the square roots of a half and of 2
    f = (bits - (k << 52)).view(xp.float64)
    f = (f - 1) / (f + 1)
    k = xp.asarray(k, dtype=xp.float64)
    z = f * f
    f = f + f
    return k * _LN2_HIGH + (f + (f * (z * _polynomial(_ARTANH[1:], z)) + k * _LN2_LOW))


_TURN = 1024  # a turn is so many parts, whose sines are in a table
_PART_HIGH = math.ldexp(6746518852, -40)  # 33 bits of a part of a turn, so that a multiple of it is exact
_PART_LOW = 2.3738673853539813e-13  # the rest


def _sin_cos(xp: Any, x: Any) -> Any:
    shifted = x * (_TURN / 2 / math.pi) + _SHIFT
    k = shifted - _SHIFT
    r = (x - k * _PART_HIGH) - k * _PART_LOW  # |r| <= pi / 1024
    z = r * r
    sine = r + r * (z * (z * (1 / 120) - 1 / 6))
    less = z * (z * (1 / 24) - 0.5)  # the cosine less 1
    part = shifted.view(xp.int64) & (_TURN - 1)
    known = _sines(xp, x).take(xp.stack([part, part + _TURN, part + 2 * _TURN]))
    return known[:2] + (known[:2] * less + known[1:] * sine)


@cache
def _table() -> Any:
    """Sine, cosine and minus the sine of every part of a turn, (3, 1024)."""
    angles = np.arange(_TURN // 8 + 1) * (2 * math.pi / _TURN)
    z = angles * angles
    sine = angles + angles * (z * _polynomial([(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)], z))
    cosine = 1 + z * _polynomial([(-1) ** k / math.factorial(2 * k) for k in range(1, 9)], z)
    quarter = np.concatenate([sine, cosine[-2::-1]])  # 0 to 90°
    turn = np.concatenate([quarter[:-1], quarter[:0:-1], -quarter[:-1], -quarter[:0:-1]])
    return np.stack([turn, np.roll(turn, -_TURN // 4), -turn])


def _sines(xp: Any, like: Any) -> Any:
    return _table() if xp is np else torch.from_numpy(_table()).to(like.device)


_ARCTAN = tuple((-1) ** k / (2 * k + 1) for k in range(22))


def _arctan2(xp: Any, y: Any, x: Any) -> Any:
    across, up = abs(x), abs(y)
    longer = xp.maximum(across, up)
    t = xp.minimum(across, up) / xp.where(longer == 0, 1.0, longer)
    t = t / (1 + xp.sqrt(1 + t * t))  # the tangent of half the angle, up to pi / 8
    z = t * t
    angle = 2 * (t + t * (z * _polynomial(_ARCTAN[1:], z)))
    angle = xp.where(up > across, math.pi / 2 - angle, angle)
    return xp.copysign(xp.where(x < 0, math.pi - angle, angle), y)


# Rational approximations of least relative error, made by docs/make_normal.py: in 0.425² - (p - 1/2)² of the quantile
# over p - 1/2 within 0.425 of the middle, and in sqrt(-log p) - 1.6 of the quantile in the tail beyond.
_MIDDLE = 0.425
_TAIL = 1.6
_CENTRE_OVER = (
    3.3871328727963665,
    132.97557689143147,
    1966.17289871994,
    13669.059899841084,
    45611.95030474683,
    66635.35296292101,
    33014.17326269556,
    2468.9441911518725,
)
_CENTRE_UNDER = (
    1.0,
    42.264294833629194,
    685.4400439140338,
    5371.535872983877,
    21082.49148022754,
    38971.52767336637,
    28403.52815408311,
    5150.707469439314,
)
_TAIL_OVER = (
    1.4234371107496837,
    4.619154236910949,
    5.758886558609088,
    3.682098098179763,
    1.3310150429117529,
    0.27798591694951014,
    0.03221002807100253,
    0.0018118772507483393,
    3.476242416350828e-05,
)
_TAIL_UNDER = (
    1.0,
    2.0453348627799537,
    1.6783566175622113,
    0.7107837548237032,
    0.16591117886377643,
    0.020862304005912564,
    0.0012420054106459526,
    2.4580042303130374e-05,
)


def _normal_quantile(xp: Any, p: Any) -> Any:
    q = p - 0.5
    z = _MIDDLE * _MIDDLE - q * q
    x = q * (_polynomial(_CENTRE_OVER, z) / _polynomial(_CENTRE_UNDER, z))
    (far,) = xp.where(abs(q) > _MIDDLE)
    p, q = p[far], q[far]
    r = xp.sqrt(-_log(xp, xp.minimum(p, 1 - p))) - _TAIL
    x[far] = xp.copysign(_polynomial(_TAIL_OVER, r) / _polynomial(_TAIL_UNDER, r), q)
    return x
