"""The score network: a noise-conditional RefineNet of the NCSN family (Song and Ermon, 2019).

Four residual stages (the second halves the resolution, the last two dilate) feed four refinement blocks from the
coarsest to the finest. Every normalisation is an instance norm whose scale and shift depend on the noise level, so
no sample ever sees another one.

Module names follow the layout of published NCSN checkpoints, so that these load key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PDM_ARCHITECTURE", "Architecture", "RefineNet"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu": functional.elu, "silu": functional.silu}


@dataclass(frozen=True)
class Architecture:
    """Shape of a `RefineNet`.

    Attributes:
        inputs: Input channels.
        outputs: Output channels.
        features: Channels of the finest stage; the coarse ones have twice as many.
        levels: Noise levels.
        rows: Rows of the image that the waypoints are folded into, row by row. With one row the network
            convolves along the trajectory only.
        columns: Columns of that image; rows × columns × patch waypoints.
        patch: Successive waypoints put into one pixel, side by side in its channels.
        activation: "elu", or "silu", which is a third of its cost.
    """

    inputs: int = 4
    outputs: int = 4
    features: int = 8
    levels: int = 10
    rows: int = 8
    columns: int = 8
    patch: int = 1
    activation: str = "elu"

    def __post_init__(self) -> None:
        """Refuse sizes that no network has."""
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(_ACTIVATIONS)}, got {self.activation!r}")
        for name, value in vars(self).items():
            if name == "activation":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"architecture: {name} must be a whole number of at least 1, got {value!r}")

    @property
    def waypoints(self) -> int:
        """Waypoints of one trajectory."""
        return self.rows * self.columns * self.patch


PDM_ARCHITECTURE = Architecture()
"""The network of the public trajectory checkpoints of Projected Diffusion Models: 64 waypoints seen as 8 by 8."""


@dataclass(frozen=True)
class _Kernels:
    """Makes layers for images, or for single rows, where kernels are one high."""

    flat: bool
    activation: Callable[[Tensor], Tensor]

    def size(self, width: int) -> tuple[int, int]:
        return (1, width) if self.flat else (width, width)

    def conv(self, inputs: int, outputs: int, width: int = 3, dilation: int = 1, bias: bool = True) -> nn.Conv2d:
        along = dilation * (width // 2)
        return nn.Conv2d(
            inputs,
            outputs,
            self.size(width),
            padding=(0 if self.flat else along, along),
            dilation=dilation,
            bias=bias,
        )


class _Norm(nn.Module):
    """Conditional instance norm++: scale, shift and the share of the removed means given back, by noise level."""

    def __init__(self, features: int, levels: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(levels, 3 * features)
        with torch.no_grad():
            self.embed.weight[:, : 2 * features].add_(50.0).mul_(0.02)  # scales near one
            self.embed.weight[:, 2 * features :].zero_()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(n, c, h, w) and (n,) or (1,) levels to (n, c, h, w)."""
        scale, give_back, shift = self.embed(level)[:, :, None, None].chunk(3, dim=1)
        mean = x.mean(dim=(2, 3), keepdim=True)
        x = x - mean  # centring first costs less than torch.var_mean and loses no digits
        deviation = torch.rsqrt(x.square().mean(dim=(2, 3), keepdim=True) + 1e-5)
        spread, centre = torch.var_mean(mean, dim=1, keepdim=True)
        standing = (mean - centre) * torch.rsqrt(spread + 1e-5)
        out: Tensor = x * (scale * deviation) + (shift + scale * give_back * standing)
        return out


class _PooledConv(nn.Module):
    """A convolution followed by averaging neighbours: half the resolution."""

    def __init__(self, make: _Kernels, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.conv = make.conv(inputs, outputs, width)
        self.pool = make.size(2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(x), self.pool)


class _Residual(nn.Module):
    """Two normalised convolutions beside a shortcut. `change` says how the shape changes on the way."""

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
        shape = xs[0].shape[2:]
        scaled = [conv(norm(x, level)) for x, conv, norm in zip(xs, self.convs, self.norms, strict=True)]
        return sum(
            (
                h if h.shape[2:] == shape else functional.interpolate(h, shape, mode="bilinear", align_corners=True)
                for h in scaled[1:]
            ),
            scaled[0],
        )


class _PooledChain(nn.Module):
    """CRP: ever wider averages, each added to the input."""

    average: Tensor

    def __init__(self, make: _Kernels, features: int, levels: int, shape: tuple[int, int]) -> None:
        super().__init__()
        self.activation = make.activation
        self.convs = nn.ModuleList(make.conv(features, features, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(_Norm(features, levels) for _ in range(2))
        # Averaging over five neighbours is linear; on images this small a matrix is ten times faster than pooling.
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
        self,
        make: _Kernels,
        inputs: Sequence[int],
        features: int,
        levels: int,
        shape: tuple[int, int],
        last: bool = False,
    ) -> None:
        super().__init__()
        self.adapt_convs = nn.ModuleList(_ResidualConvs(make, c, levels, 2) for c in inputs)
        self.output_convs = _ResidualConvs(make, features, levels, 3 if last else 1)
        self.msf = _Fusion(make, inputs, features, levels) if len(inputs) > 1 else None
        self.crp = _PooledChain(make, features, levels, shape)

    def forward(self, xs: Sequence[Tensor], level: Tensor) -> Tensor:
        adapted = [adapt(x, level) for adapt, x in zip(self.adapt_convs, xs, strict=True)]
        h = adapted[0] if self.msf is None else self.msf(adapted, level)
        out: Tensor = self.output_convs(self.crp(h, level), level)
        return out


class RefineNet(nn.Module):
    """Noise-conditional RefineNet over trajectories.

    Args:
        architecture: Its shape.
        seed: Of the initial weights.

    Example:
        >>> net = RefineNet(PDM_ARCHITECTURE)
        >>> net(torch.zeros(5, 4, 64), 3).shape
        torch.Size([5, 4, 64])
    """

    def __init__(self, architecture: Architecture, seed: int = 0) -> None:
        """Build the network; torch draws initial weights from the global generator, which is put back."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build(architecture)

    def _build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        fine, levels = architecture.features, architecture.levels
        make = _Kernels(architecture.rows == 1, _ACTIVATIONS[architecture.activation])
        wide = 2 * fine
        self.activation = make.activation
        self.begin_conv = make.conv(architecture.inputs * architecture.patch, fine)
        self.normalizer = _Norm(fine, levels)
        self.end_conv = make.conv(fine, architecture.outputs * architecture.patch)
        self.res1 = nn.ModuleList([_Residual(make, fine, fine, levels), _Residual(make, fine, fine, levels)])
        self.res2 = nn.ModuleList([_Residual(make, fine, wide, levels, "halve"), _Residual(make, wide, wide, levels)])
        self.res3, self.res4 = (
            nn.ModuleList(
                [_Residual(make, wide, wide, levels, "dilate", d), _Residual(make, wide, wide, levels, dilation=d)]
            )
            for d in (2, 4)
        )
        full = (architecture.rows, architecture.columns)
        half = (1 if architecture.rows == 1 else architecture.rows // 2, architecture.columns // 2)
        self.refine1 = _Refine(make, [wide], wide, levels, half)
        self.refine2 = _Refine(make, [wide, wide], wide, levels, half)
        self.refine3 = _Refine(make, [wide, wide], fine, levels, half)
        self.refine4 = _Refine(make, [fine, fine], fine, levels, full, last=True)

    def forward(self, x: Tensor, level: int | Tensor) -> Tensor:
        """The network's output at a noise level.

        Args:
            x: (n, inputs, waypoints).
            level: Noise level for all samples, or (n,) integers; 0 is the noisiest.

        Returns:
            (n, outputs, waypoints).
        """
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
        h = self.refine2([stages[2], h], level)
        h = self.refine3([stages[1], h], level)
        h = self.refine4([stages[0], h], level)
        out: Tensor = self.end_conv(self.activation(self.normalizer(h, level)))
        pixels = out.reshape(len(x), shape.outputs, shape.patch, shape.rows, shape.columns)
        return pixels.movedim(2, 4).reshape(len(x), shape.outputs, shape.waypoints)
