"""The score network: a noise-conditional RefineNet of the NCSN family (Song and Ermon, 2019).

Four residual stages (the second halves the resolution, the last two dilate) feed four refinement blocks from the
coarsest to the finest. Scale and shift of every instance norm depend on the noise level. Module names follow published
NCSN checkpoints, so that these load key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.core.checks import check_integer
from trimtab_lab.domains.learned import fresh

__all__ = ["PDM_ARCHITECTURE", "Architecture", "RefineNet"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu": functional.elu, "silu": functional.silu}


@dataclass(frozen=True)
class Architecture:
    """The shape of a `RefineNet`."""

    inputs: int = 4  # input channels
    outputs: int = 4  # output channels
    features: int = 8  # channels of the finest stage; the coarse ones have twice as many
    levels: int = 10  # noise levels
    # rows of the image into which the waypoints are folded; with one row all convolutions run along the path
    rows: int = 8
    columns: int = 8  # columns of that image
    patch: int = 1  # successive waypoints in one pixel; there are rows × columns × patch waypoints
    activation: str = "elu"  # "elu", or "silu", which costs a third

    def __post_init__(self) -> None:
        """Check the sizes, which may come from a file."""
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(_ACTIVATIONS)}: got {self.activation!r}")
        for name in ("inputs", "outputs", "features", "levels", "rows", "columns", "patch"):
            check_integer(getattr(self, name), name)

    @property
    def waypoints(self) -> int:
        """The number of waypoints of a trajectory."""
        return self.rows * self.columns * self.patch


PDM_ARCHITECTURE = Architecture()
"""The network of the public trajectory checkpoints of PDM: 64 waypoints as an image of 8 by 8."""


class _Kernels(NamedTuple):
    """Makes layers for images, or for single rows, whose kernels are one high."""

    flat: bool
    activation: Callable[[Tensor], Tensor]

    def size(self, width: int) -> tuple[int, int]:
        return (1, width) if self.flat else (width, width)

    def conv(self, inputs: int, outputs: int, width: int = 3, dilation: int = 1, bias: bool = True) -> nn.Conv2d:
        along = dilation * (width // 2)
        padding = (0 if self.flat else along, along)
        return nn.Conv2d(inputs, outputs, self.size(width), padding=padding, dilation=dilation, bias=bias)


class _Norm(nn.Module):
    """Conditional instance norm++: scale, shift and the share of the removed means given back, by noise level."""

    def __init__(self, features: int, levels: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(levels, 3 * features)
        with torch.no_grad():
            self.embed.weight[:, : 2 * features].add_(50.0).mul_(0.02)  # scales near one
            self.embed.weight[:, 2 * features :].zero_()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Map (n, c, h, w) at levels (n,) or (1,) to (n, c, h, w)."""
        scale, give_back, shift = self.embed(level)[:, :, None, None].chunk(3, dim=1)
        mean = x.mean(dim=(2, 3), keepdim=True)
        x = x - mean
        deviation = torch.rsqrt(x.square().mean(dim=(2, 3), keepdim=True) + 1e-5)
        spread, centre = torch.var_mean(mean, dim=1, keepdim=True)
        standing = (mean - centre) * torch.rsqrt(spread + 1e-5)
        out: Tensor = x * (scale * deviation) + (shift + scale * give_back * standing)
        return out


class _PooledConv(nn.Module):
    """A convolution, then the average of neighbours: half the resolution."""

    def __init__(self, make: _Kernels, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.conv = make.conv(inputs, outputs, width)
        self.pool = make.size(2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(x), self.pool)


class _Residual(nn.Module):
    """Two normalised convolutions and a shortcut; `change` is "none", "halve" or "dilate"."""

    def __init__(
        self, make: _Kernels, inputs: int, outputs: int, levels: int, change: str = "none", dilation: int = 1
    ) -> None:
        super().__init__()
        self.activation = make.activation
        self.conv1 = make.conv(inputs, inputs, dilation=dilation)
        self.normalize2 = _Norm(inputs, levels)
        self.conv2: nn.Module
        self.shortcut: nn.Module | None = None
        if change == "halve":
            self.conv2 = _PooledConv(make, inputs, outputs, 3)
            self.shortcut = _PooledConv(make, inputs, outputs, 1)
        else:
            self.conv2 = make.conv(inputs, outputs, dilation=dilation)
            if change == "dilate":
                self.shortcut = make.conv(inputs, outputs, dilation=dilation)
        self.normalize1 = _Norm(inputs, levels)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv1(self.activation(self.normalize1(x, level)))
        h = self.conv2(self.activation(self.normalize2(h, level)))
        out: Tensor = h + (x if self.shortcut is None else self.shortcut(x))
        return out


class _ResidualConvs(nn.ModuleDict):
    """RCU: `blocks` residual chains of two convolutions each, named 1_1, 1_2, 2_1 and so on."""

    def __init__(self, make: _Kernels, features: int, levels: int, blocks: int) -> None:
        super().__init__()
        self.activation = make.activation
        self.blocks = blocks
        for b in range(1, blocks + 1):
            for stage in (1, 2):
                self[f"{b}_{stage}_norm"] = _Norm(features, levels)
                self[f"{b}_{stage}_conv"] = make.conv(features, features, bias=False)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        for b in range(1, self.blocks + 1):
            h = x
            for stage in (1, 2):
                h = self[f"{b}_{stage}_conv"](self.activation(self[f"{b}_{stage}_norm"](h, level)))
            x = x + h
        return x


class _Fusion(nn.Module):
    """MSF: bring several resolutions to the finest and add them."""

    def __init__(self, make: _Kernels, inputs: Sequence[int], features: int, levels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(make.conv(c, features) for c in inputs)
        self.norms = nn.ModuleList(_Norm(c, levels) for c in inputs)

    def forward(self, xs: Sequence[Tensor], level: Tensor) -> Tensor:
        first, *others = (conv(norm(x, level)) for x, conv, norm in zip(xs, self.convs, self.norms, strict=True))
        shape = first.shape[2:]
        for h in others:
            fits = h.shape[2:] == shape
            first = first + (h if fits else functional.interpolate(h, shape, mode="bilinear", align_corners=True))
        out: Tensor = first
        return out


class _PooledChain(nn.Module):
    """CRP: ever wider averages, each added to the input."""

    average: Tensor

    def __init__(self, make: _Kernels, features: int, levels: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.activation = make.activation
        self.convs = nn.ModuleList(make.conv(features, features, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(_Norm(features, levels) for _ in range(2))
        # the average over five neighbours as a matrix, which is ten times faster on images this small
        size, width = shape[0] * shape[1], make.size(5)
        unit = torch.eye(size).reshape(size, 1, *shape)
        pooled = functional.avg_pool2d(unit, width, stride=1, padding=(width[0] // 2, width[1] // 2))
        self.register_buffer("average", pooled.reshape(size, size), persistent=False)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        x = path = self.activation(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            path = conv((norm(path, level).flatten(2) @ self.average).reshape(x.shape))
            x = x + path
        return x


class _Refine(nn.Module):
    """One refinement block: adapt each input, fuse them, pool in chain, convolve."""

    def __init__(
        self, make: _Kernels, inputs: Sequence[int], features: int, levels: int, shape: tuple[int, int], blocks: int = 1
    ) -> None:
        super().__init__()
        self.adapt_convs = nn.ModuleList(_ResidualConvs(make, c, levels, 2) for c in inputs)
        self.output_convs = _ResidualConvs(make, features, levels, blocks)
        self.msf = _Fusion(make, inputs, features, levels) if len(inputs) > 1 else None
        self.crp = _PooledChain(make, features, levels, shape)

    def forward(self, xs: Sequence[Tensor], level: Tensor) -> Tensor:
        adapted = [adapt(x, level) for adapt, x in zip(self.adapt_convs, xs, strict=True)]
        h = adapted[0] if self.msf is None else self.msf(adapted, level)
        out: Tensor = self.output_convs(self.crp(h, level), level)
        return out


class RefineNet(nn.Module):
    """A noise-conditional RefineNet over trajectories.

    Args:
        architecture: Its shape.
        seed: The seed of the initial weights; the global generator is left as it was.

    Example:
        >>> net = RefineNet(PDM_ARCHITECTURE)
        >>> net(torch.zeros(5, 4, 64), 3).shape
        torch.Size([5, 4, 64])
    """

    def __init__(self, architecture: Architecture, seed: int = 0) -> None:
        """Build the network."""
        super().__init__()
        self.architecture = architecture
        fresh(self._build, seed)

    def _build(self) -> RefineNet:
        shape = self.architecture
        fine, wide, levels = shape.features, 2 * shape.features, shape.levels
        make = _Kernels(shape.rows == 1, _ACTIVATIONS[shape.activation])
        self.activation = make.activation
        self.begin_conv = make.conv(shape.inputs * shape.patch, fine)
        self.normalizer = _Norm(fine, levels)
        self.end_conv = make.conv(fine, shape.outputs * shape.patch)
        self.res1 = nn.ModuleList([_Residual(make, fine, fine, levels), _Residual(make, fine, fine, levels)])
        self.res2 = nn.ModuleList([_Residual(make, fine, wide, levels, "halve"), _Residual(make, wide, wide, levels)])
        self.res3, self.res4 = (
            nn.ModuleList(
                [_Residual(make, wide, wide, levels, "dilate", d), _Residual(make, wide, wide, levels, dilation=d)]
            )
            for d in (2, 4)
        )
        full = (shape.rows, shape.columns)
        half = (1 if make.flat else shape.rows // 2, shape.columns // 2)
        self.refine1 = _Refine(make, [wide], wide, levels, half)
        self.refine2 = _Refine(make, [wide, wide], wide, levels, half)
        self.refine3 = _Refine(make, [wide, wide], fine, levels, half)
        self.refine4 = _Refine(make, [fine, fine], fine, levels, full, blocks=3)
        return self

    def forward(self, x: Tensor, level: int | Tensor) -> Tensor:
        """Map (n, inputs, waypoints) to (n, outputs, waypoints) at a noise level, an int or (n,); 0 is the noisiest."""
        shape = self.architecture
        if x.ndim != 3 or x.shape[1:] != (shape.inputs, shape.waypoints):
            raise ValueError(
                f"the network takes ({shape.inputs}, {shape.waypoints}) trajectories, batch first: got {tuple(x.shape)}"
            )
        level = torch.as_tensor(level, device=x.device).reshape(-1)
        pixels = x.reshape(len(x), shape.inputs, shape.rows, shape.columns, shape.patch)
        h = self.begin_conv(pixels.movedim(4, 2).flatten(1, 2))
        stages: list[Tensor] = []
        for blocks in (self.res1, self.res2, self.res3, self.res4):
            for block in blocks:
                h = block(h, level)
            stages.append(h)
        h = self.refine1([stages[3]], level)
        for refine, stage in zip((self.refine2, self.refine3, self.refine4), stages[2::-1], strict=True):
            h = refine([stage, h], level)
        out: Tensor = self.end_conv(self.activation(self.normalizer(h, level)))
        pixels = out.reshape(len(x), shape.outputs, shape.patch, shape.rows, shape.columns)
        return pixels.movedim(2, 4).reshape(len(x), shape.outputs, shape.waypoints)
