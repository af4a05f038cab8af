"""Circles and boxes in the plane, and the gaps between them and line segments.

Functions take flat lists of N segments against all m obstacles at once, as (m, N) tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.core.checks import check_integer

__all__ = ["Contacts", "Obstacles", "contacts", "from_segment", "gaps", "penetration", "scattered_circles"]

_TINY = 1e-12  # squared length below which a segment is a point
_CENTRED = 1e-7  # distance from a centre below which there is no direction away from it


@dataclass(frozen=True, eq=False)
class Obstacles:
    """Circles and axis-aligned boxes that a path must stay out of.

    Attributes:
        circles: Centre and radius, (m, 3) as x, y, r; m may be 0.
        boxes: Corners, (k, 4) as xmin, ymin, xmax, ymax; by default there are none.

    Example:
        >>> import torch
        >>> len(Obstacles(torch.tensor([[0.0, 0.0, 0.5]]), boxes=torch.tensor([[0.6, 0.6, 0.9, 0.8]])))
        2
    """

    circles: Tensor
    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))

    def __post_init__(self) -> None:
        """Check shapes and sizes."""
        try:
            circles, boxes = torch.as_tensor(self.circles), torch.as_tensor(self.boxes)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                "circles and boxes must be tensors of numbers, one obstacle per row: got "
                f"{self.circles!r:.60} and {self.boxes!r:.60}"
            ) from error
        for name, value, columns in (("circles", circles, "x, y, r"), ("boxes", boxes, "xmin, ymin, xmax, ymax")):
            width = columns.count(",") + 1
            if value.ndim != 2 or value.shape[1] != width or not value.is_floating_point():
                raise ValueError(
                    f"{name} must be a floating-point ({'m' if width == 3 else 'k'}, {width}) tensor of {columns}, "
                    f"got {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
                )
            if not bool(value.isfinite().all()):
                raise ValueError(f"{name} must be finite, got NaN or inf in row {_first(~value.isfinite().all(1))}")
        if bool((circles[:, 2] <= 0).any()):
            raise ValueError(f"circles need a radius above 0, got {float(circles[:, 2].min())}; remove such circles")
        if bool((boxes[:, 2:] <= boxes[:, :2]).any()):
            row = _first((boxes[:, 2:] <= boxes[:, :2]).any(1))
            raise ValueError(f"boxes need xmin < xmax and ymin < ymax, got {boxes[row].tolist()} in row {row}")
        object.__setattr__(self, "circles", circles)
        object.__setattr__(self, "boxes", boxes.to(circles))

    def __len__(self) -> int:
        """Return the number of obstacles."""
        return len(self.circles) + len(self.boxes)

    def to(self, like: Tensor) -> Obstacles:
        """Return the same obstacles in the dtype and on the device of `like`."""
        if self.circles.dtype == like.dtype and self.circles.device == like.device:
            return self
        return Obstacles(self.circles.to(like), self.boxes.to(like))


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0, 0])


def from_segment(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return t in [0, 1] of the nearest point (1 - t) a + t b of segments to points, and x and y less that point.

    The ends a and b are (2, …); x and y broadcast against the segments. `search.c` and `ipopt` have the same formula.
    """
    ux, uy = b - a
    dx, dy = x - a[0], y - a[1]
    t = (torch.addcmul(dx * ux, dy, uy) * (1 / (ux * ux + uy * uy).clamp(min=_TINY))).clamp(0, 1)
    return t, torch.addcmul(dx, t, ux, value=-1), torch.addcmul(dy, t, uy, value=-1)


def gaps(obstacles: Obstacles, a: Tensor, b: Tensor) -> Tensor:
    """Return the signed gap between each obstacle and each segment, (m, N): minus the depth if they overlap.

    The ends a and b of segments are (2, N), like the obstacles in dtype and device. For a circle the gap is the
    distance; outside a box it is a lower bound of it.
    """
    cx, cy, r = obstacles.circles.T.unsqueeze(2)
    _, dx, dy = from_segment(a, b, cx, cy)
    gap: Tensor = torch.addcmul(dx * dx, dy, dy).sqrt() - r
    if not len(obstacles.boxes):
        return gap
    return torch.cat([gap, _box_gaps(obstacles.boxes.T.unsqueeze(2), a, b).amax(0)])


def penetration(obstacles: Obstacles, a: Tensor, b: Tensor) -> Tensor:
    """Return how deep each segment is in each obstacle, (m, N): the length of the shortest move out."""
    return (-gaps(obstacles, a, b)).clamp(min=0)


def _box_gaps(boxes: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return signed gaps between boxes and segments along the five directions that can separate them, (5, …).

    The Minkowski difference of a box and a segment is a hexagon whose sides face along ±x, ±y and the segment's two
    normals, so that the largest gap, if negative, is minus the penetration depth.
    """
    xmin, ymin, xmax, ymax = boxes
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    nx, ny, is_point = _normal(a, b)
    across = nx * (a[0] - (xmin + xmax) / 2) + ny * (a[1] - (ymin + ymax) / 2)
    reach = nx.abs() * ((xmax - xmin) / 2) + ny.abs() * ((ymax - ymin) / 2)
    oblique = (across.abs() - reach).masked_fill(is_point, -torch.inf)  # a point has no normal
    return torch.stack([low[0] - xmax, xmin - high[0], low[1] - ymax, ymin - high[1], oblique])


def _normal(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit normals of segments, and which segments are points and have none."""
    ux, uy = b - a
    squared = ux * ux + uy * uy
    inverse = 1 / squared.clamp(min=_TINY).sqrt()
    return -uy * inverse, ux * inverse, squared <= _TINY


class Contacts(NamedTuple):
    """Obstacle-segment pairs, each as the half-plane that the nearest point of the segment must stay in.

    The constraint of a pair is `nx * px + ny * py >= edge` for the point p = (1 - t) a + t b. Each field is (P,).
    """

    gap: Tensor
    t: Tensor
    nx: Tensor
    ny: Tensor
    edge: Tensor


def contacts(obstacles: Obstacles, which: Tensor, a: Tensor, b: Tensor) -> Contacts:
    """Return the half-planes of P pairs: obstacles `which`, (P,) ascending, and segments with ends (2, P)."""
    if not len(obstacles.boxes):
        return _circle_contacts(obstacles.circles[which].T, a, b)
    m = len(obstacles.circles)
    cut = int((which < m).sum())
    circles = _circle_contacts(obstacles.circles[which[:cut]].T, a[:, :cut], b[:, :cut])
    boxes = _box_contacts(obstacles.boxes[which[cut:] - m].T, a[:, cut:], b[:, cut:])
    return Contacts(*(torch.cat(pair) for pair in zip(circles, boxes, strict=True)))


def _circle_contacts(circles: Tensor, a: Tensor, b: Tensor) -> Contacts:
    cx, cy, r = circles
    t, dx, dy = from_segment(a, b, cx, cy)
    distance = (dx * dx + dy * dy).sqrt()
    # A segment through the centre has no direction away from it: take its normal, for a point the x axis.
    centred = distance < _CENTRED
    inverse = 1 / distance.clamp(min=_CENTRED)
    normal_x, normal_y, is_point = _normal(a, b)
    nx = torch.where(centred, normal_x.masked_fill(is_point, 1.0), -dx * inverse)
    ny = torch.where(centred, normal_y.masked_fill(is_point, 0.0), -dy * inverse)
    return Contacts(distance - r, t, nx, ny, nx * cx + ny * cy + r)


def _box_contacts(boxes: Tensor, a: Tensor, b: Tensor) -> Contacts:
    xmin, ymin, xmax, ymax = boxes
    gap, axis = _box_gaps(boxes, a, b).max(0)
    normal_x, normal_y, _ = _normal(a, b)
    across = normal_x * (a[0] - (xmin + xmax) / 2) + normal_y * (a[1] - (ymin + ymax) / 2)
    facing = torch.where(across < 0, -1.0, 1.0).to(a.dtype)
    oblique = axis == 4
    nx = torch.where(oblique, normal_x * facing, (axis == 0).to(a.dtype) - (axis == 1).to(a.dtype))
    ny = torch.where(oblique, normal_y * facing, (axis == 2).to(a.dtype) - (axis == 3).to(a.dtype))
    corner_x, corner_y = torch.where(nx > 0, xmax, xmin), torch.where(ny > 0, ymax, ymin)
    # Along x or y the nearer end decides; along the segment's normal, the foot of the corner on the segment.
    ux, uy = b - a
    along = ((corner_x - a[0]) * ux + (corner_y - a[1]) * uy) / (ux * ux + uy * uy).clamp(min=_TINY)
    end = (nx * ux + ny * uy < 0).to(a.dtype)
    return Contacts(gap, torch.where(oblique, along.clamp(0, 1), end), nx, ny, nx * corner_x + ny * corner_y)


def scattered_circles(
    count: int = 24, *, seed: int, radius: tuple[float, float] = (0.08, 0.13), gap: float = 0.06, spare: float = 0.12
) -> Obstacles:
    """Draw a random map on [-1, 1]², float32: circles with open passages between them, away from the corners.

    Args:
        count: Number of circles.
        seed: The same seed gives the same map.
        radius: Smallest and largest radius.
        gap: Smallest passage between two circles, so that the map stays connected.
        spare: Radius kept free around the four corners, where starts and goals often are.
    """
    check_integer(count, "the count of circles", 0)
    generator = torch.Generator().manual_seed(seed)
    corners = torch.tensor([[-0.9, -0.9], [-0.9, 0.9], [0.9, -0.9], [0.9, 0.9]], dtype=torch.float64)
    kept = torch.zeros(0, 3, dtype=torch.float64)
    for _ in range(10_000):
        if len(kept) == count:
            return Obstacles(kept.float())
        draw = torch.rand(3, generator=generator, dtype=torch.float64)
        r = radius[0] + (radius[1] - radius[0]) * draw[2]
        centre = (2 * draw[:2] - 1) * (1 - r)
        far = (kept[:, :2] - centre).norm(dim=1) >= kept[:, 2] + r + gap
        free = (corners - centre).norm(dim=1) >= r + spare
        if bool(far.all()) and bool(free.all()):
            kept = torch.cat([kept, torch.cat([centre, r[None]])[None]])
    raise ValueError(
        f"{count} circles of radius {radius} with gaps of {gap} do not fit into [-1, 1]²: {len(kept)} did; "
        "ask for fewer, smaller or closer ones"
    )
