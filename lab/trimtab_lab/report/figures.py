"""The figures of a run, as PNG for the screen and SVG and PDF for print."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab_lab.domains import base_of, dynamics_of
from trimtab_lab.obstacles.geometry import Obstacles, gaps
from trimtab_lab.report.page import traces_of
from trimtab_lab.report.study_tables import domain_label
from trimtab_lab.report.style import COLUMN, FORMATS, PAGE, figure_style, label_of, look_of
from trimtab_lab.studies.config import Study
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import reported, reported_beside
from trimtab_lab.studies.traces import Trace, read_about

__all__ = ["frontier", "write_figures"]

Summary = Mapping[str, Any]
Traces = Mapping[tuple[str, float], Trace]

# domains come in pairs, a smooth and a volatile one: one colour per pair, the volatile one filled
_DOMAIN_LOOKS = {
    "so3": ("#0072B2", "o", False),
    "so3-impulse": ("#0072B2", "o", True),
    "se3": ("#D55E00", "s", False),
    "se3-lever": ("#D55E00", "s", True),
    "terrain": ("#009E73", "^", False),
    "terrain-ridge": ("#009E73", "^", True),
}
_VOLATILE = ("terrain-ridge", "so3-impulse")  # defects are concentrated in a few steps
_SMOOTH = ("terrain-dome", "terrain", "so3")  # on the dome all steps make the same defect
_COLLISION = "#E3120B"
_TOLERANCE = 1e-3  # penetration below this is the solver's own
_METHODS = ("adaptive:paper", "adaptive:dp")  # budgets of their own, as the one trajectory drawn has


def write_figures(files: RunFiles, summary: Summary) -> list[Path]:
    """Draw every figure that a run has the numbers for into `figures/`."""
    study = Study.from_summary(summary)
    facts = read_about(files, study.domains)
    figures: dict[str, Callable[[Any], Any]] = {}

    def add(name: str, draw: Callable[..., Any], *arguments: Any) -> None:
        figures[name] = lambda plt: draw(plt, *arguments)

    for ending, names in _by_dynamics(study).items():
        for metric, label in (("nepe", "NEPE"), ("endpoint", "endpoint distance")):
            add(f"{metric}{ending}", frontier, summary, metric, label, names)
    if study.example_seeds:
        volatile, smooth = _first(study, _VOLATILE), _first(study, _SMOOTH)
        drifted = _drifted(study, facts, {name: traces_of(files, study, name) for name in _ridges(study)})
        if drifted is not None:
            add("title", title, *drifted, study)
        if volatile:
            kept = {name: traces_of(files, study, name) for name in (volatile, smooth) if name}
            add("regime", regime, summary, kept, study)
        if "pdm" in study.domains:
            circles = facts["pdm"].get("obstacles") or []
            add("trajectories", trajectories, traces_of(files, study, "pdm"), circles, study)
    swept = [cell["improvement"] for kappas in summary.get("kappa", {}).values() for cell in kappas.values()]
    for key in swept[0] if swept else ():
        add(
            "where-it-helps" + ("" if key == "adaptive:paper" else f"-{key.replace(':', '-')}"),
            where_it_helps,
            summary,
            key,
        )
    written = []
    for name, draw in figures.items():
        with figure_style() as plt:
            figure = draw(plt)
            for ending, metadata in FORMATS.items():
                crop = None if name == "title" else "tight"  # the title's axes are larger than the page on purpose
                file = io.BytesIO()
                figure.savefig(file, format=ending, metadata=metadata, bbox_inches=crop, pad_inches=0.03)
                written.append(files.put(f"figures/{name}.{ending}", file.getvalue()))
    return written


def _by_dynamics(study: Study) -> dict[str, list[str]]:
    """Return the domains of each frontier figure, by the suffix of its file name: one figure per kind of dynamics."""
    groups: dict[str, list[str]] = {}
    several = len({dynamics_of(name) for name in study.domains} - {None}) > 1
    for name in study.domains:
        if len(study.budgets_of(name)) >= min(4, len(study.budgets)):  # counter-examples have one budget between
            dynamics = dynamics_of(name)
            own = f"-{name}" if dynamics is None and several else ""
            groups.setdefault(f"-{dynamics}" if dynamics and dynamics != "langevin" else own, []).append(name)
    return groups


def _first(study: Study, bases: Sequence[str]) -> str | None:
    """Return a study's domain for the first of `bases` that it has, with any dynamics; None if it has none."""
    return next((name for base in bases for name in study.domains if base_of(name) == base), None)


def _methods(study: Study) -> list[str]:
    """Return the schedules that examples show: the paper's rule and the dynamic program; without them one other."""
    others = [key for key in study.schedules if key not in ("terminal", "stepwise", "periodic")]
    return [key for key in _METHODS if key in others] or others[-1:] or ["periodic"]


def _ridges(study: Study) -> list[str]:
    return [name for name in study.domains if base_of(name) == "terrain-ridge"]


def _drifted(
    study: Study, facts: Mapping[str, Any], kept: Mapping[str, Traces]
) -> tuple[str, Mapping[str, Any], Traces, int] | None:
    """Return the example rollout on ridged terrain that leaves the ground farthest if it is left alone.

    Of the domains with examples of every schedule that is drawn, and of the rollouts that stay on the map.

    Returns:
        The label of its domain, the surface, the domain's examples, and which of their seeds it is.
    """
    drawn = [(key, study.table_budget) for key in _methods(study)]
    left: dict[tuple[str, int], float] = {}
    for name, traces in kept.items():
        ground = facts[name]["surface"]
        if not ground or not all(which in traces for which in drawn):
            continue
        edge = torch.tensor([max(ground["x"]), max(ground["y"])])
        paths = torch.stack([traces["terminal", 0.0].path, traces["stepwise", 1.0].path])[..., :2]
        inside = (paths.abs() <= edge).all(dim=-1).all(dim=0).all(dim=0)
        far = traces["terminal", 0.0].defects.amax(dim=0)
        left |= {(name, i): float(far[i]) for i in inside.nonzero().flatten().tolist()}
    if not left:
        return None
    name, i = max(left, key=lambda key: left[key])
    return facts[name]["label"], facts[name]["surface"], kept[name], i


# ------------------------------------------------------------------ the cost-accuracy frontier


def frontier(plt: Any, summary: Summary, metric: str, label: str, names: Sequence[str]) -> Any:
    """Draw a metric against the budget for these domains, one line per schedule, with the paper's numbers."""
    domains = {name: summary["domains"][name] for name in names}
    across = min(3, len(domains))
    down = -(-len(domains) // across)
    wide, tall = (PAGE * across / 3, 2.0) if across > 1 else (1.2 * COLUMN, 2.7)  # all axes, one row of axes
    figure, axes = plt.subplots(
        down, across, figsize=(wide, tall * down + 0.5), squeeze=False, sharex=True, sharey=metric == "nepe"
    )
    for axis, (name, content) in zip(axes.flat, domains.items(), strict=False):
        for key, by_budget in content["schedules"].items():
            _curve(axis, key, by_budget, metric)
        _reported(axis, summary, name, metric)
        axis.set_title(domain_label(summary, name))
        axis.set_xlim(-0.02, 1.02)
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    for axis in axes.flat[len(domains) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("budget B/T")
    for line in axes:
        line[0].set_ylabel(label)
        line[0].set_xticks([0, 0.25, 0.5, 0.75, 1])
        for axis in line:
            axis.ticklabel_format(axis="y", style="plain")
    by_label = {
        text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    known = dict.fromkeys(label_of(key) for content in domains.values() for key in content["schedules"])
    labels = [text for text in [*known, *_IN_PAPER.values()] if text in by_label]
    handles = [by_label[text] for text in labels]
    lines = -(-len(labels) // (3, 4, 7)[across - 1])  # as many in a line as fit above the axes
    columns = -(-len(labels) // lines)  # and lines of about the same length
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.1 + 0.17 * lines) / (tall * down + 0.5)))
    figure.legend(handles, labels, loc="upper center", ncols=columns, columnspacing=1.5)
    return figure


_IN_PAPER = {"periodic": "periodic in the paper", "adaptive:paper": "adaptive in the paper"}


def _reported(axis: Any, summary: Summary, name: str, metric: str) -> None:
    """Draw the paper's numbers as hollow diamonds, or write them as text if they are far above the curves."""
    paper = reported_beside("table1", name, summary["config"])
    if not paper or metric not in paper or "adaptive:paper" not in summary["domains"][name]["schedules"]:
        return
    parts = {key: paper[metric][part] for part, key in (("periodic", "periodic"), ("adaptive", "adaptive:paper"))}
    if max(mean for mean, _ in parts.values()) > 1.5 * axis.get_ylim()[1]:
        lines = ["in the paper", *(f"{_IN_PAPER[key].split()[0]} {mean:g}" for key, (mean, _) in parts.items())]
        look = {"ha": "right", "va": "top", "fontsize": 6.5, "color": "#444444"}
        axis.text(0.97, 0.95, "\n".join(lines), transform=axis.transAxes, **look)
        return
    for key, (mean, se) in parts.items():
        axis.errorbar(
            [float(reported()["table_budget"])], [mean], [se], color=look_of(key).colour, marker="D", markersize=4.5,
            markerfacecolor="white", ls="none", elinewidth=0.8, label=_IN_PAPER[key], zorder=5,
        )  # fmt: skip


def _curve(axis: Any, key: str, by_budget: Mapping[str, Any], metric: str) -> None:
    known = [(float(b), m[metric]) for b, m in by_budget.items() if m[metric]["mean"] is not None]
    if not known:
        return
    look = look_of(key)
    budgets = np.array([b for b, _ in known])
    means = np.array([value["mean"] for _, value in known])
    errors = np.array([value["se"] or 0.0 for _, value in known])
    if len(known) == 1:  # terminal and stepwise are points at the ends
        axis.errorbar(
            budgets, means, errors, color=look.colour, marker=look.marker, ls="none", label=label_of(key), zorder=4
        )
        return
    line = {"color": look.colour, "marker": look.marker, "ls": look.dashes, "label": label_of(key)}
    axis.plot(budgets, means, markersize=2.6, zorder=3, **line)
    axis.fill_between(budgets, means - errors, means + errors, color=look.colour, alpha=0.22, lw=0, zorder=2)


# ------------------------------------------------------------------ the title figure


def title(plt: Any, label: str, ground: Mapping[str, Any], traces: Traces, seed: int, study: Study) -> Any:
    """Draw one seed's path over the terrain, and its height above the ground, by terminal, stepwise and both rules."""
    shown = [("terminal", 0.0), ("stepwise", 1.0), *((key, study.table_budget) for key in _methods(study))]
    paths = {which: traces[which].path[:, seed].numpy() for which in shown}
    low, high = np.vstack(list(paths.values())).min(axis=0), np.vstack(list(paths.values())).max(axis=0)
    wide, top = 1 / len(shown), float(traces["terminal", 0.0].defects[:, seed].max())
    figure = plt.figure(figsize=(PAGE, 2.6))
    for i, which in enumerate(shown):
        path, projected = paths[which], traces[which].projected[:, seed].numpy()
        look, count = look_of(which[0]), int(projected.sum())
        # larger than its part of the page: a 3-D drawing never fills its axes
        axis = figure.add_axes((i * wide - 0.06, 0.28, wide + 0.12, 0.72), projection="3d", computed_zorder=False)
        axis.patch.set_alpha(0)
        _draw_surface(axis, ground, low, high)
        if which[0] != "stepwise":
            axis.plot(*paths["stepwise", 1.0].T, color="#000000", lw=0.8, ls=(0, (2, 1.5)), zorder=3)
            _dots(axis, path[1:][projected], 7, look.colour, "o", "white", 5)
        axis.plot(*path.T, color=look.colour, lw=1.4, zorder=4)
        _dots(axis, path[:1], 18, "white", "o", look.colour, 6)
        _dots(axis, path[-1:], 26, look.colour, "X", "white", 6)
        axis.view_init(elev=24, azim=-80)
        axis.set_box_aspect((1.7, 1.0, 0.8), zoom=1.15)
        axis.set_axis_off()
        words = f"{label_of(which[0])}\n{count or 'only the closing'} projection{'s' * (count > 1)}"
        figure.text((i + 0.5) * wide, 0.9, words, ha="center", fontsize=8)
        above = figure.add_axes((i * wide + (0.05 if i == 0 else 0.02), 0.2, wide - (0.06 if i == 0 else 0.03), 0.2))
        kept = np.where(projected, 0.0, traces[which].defects[:, seed].numpy())
        steps = np.arange(1, len(kept) + 1)
        above.fill_between(steps, kept, color=look.colour, lw=0, alpha=0.85, step="mid")
        above.vlines(steps[projected], -0.16 * top, -0.05 * top, color=look.colour, lw=0.7)
        above.set(
            xlim=(0, len(kept) + 1), ylim=(-0.2 * top, 1.05 * top), xticks=[1, len(kept)], yticks=[0, round(top, 2)]
        )
        above.grid(False)
        if i:
            above.set_yticklabels([])
    figure.text(0.0, 0.42, "height off the ground", ha="left", fontsize=7, color="#444444")
    words = (
        f"{label}, seed {int(traces['terminal', 0.0].seeds[seed])}   ○ start   $\\times$ end   • or tick: projection   "
    )
    figure.text(0.5, 0.02, words + "dashed: the stepwise path   below: step", ha="center", fontsize=7, color="#444444")
    return figure


def _draw_surface(axis: Any, ground: Mapping[str, Any], low: NDArray[Any], high: NDArray[Any]) -> None:
    """Draw the terrain around the paths, which lie between the corners `low` and `high`."""
    margin = 0.25
    u, v, z = (np.asarray(ground[name], dtype=float) for name in ("x", "y", "z"))
    near_u, near_v = ((c >= low[i] - margin) & (c <= high[i] + margin) for i, c in enumerate((u, v)))
    u, v, z = u[near_u], v[near_v], z[near_v][:, near_u]
    shades = {"cmap": "Greys", "vmin": z.min() - 0.2, "vmax": z.max() + 1.6 * np.ptp(z)}
    axis.plot_surface(
        *np.meshgrid(u, v), z, rcount=110, ccount=110, lw=0, antialiased=False, alpha=0.8, zorder=1, rasterized=True,
        **shades,
    )  # fmt: skip


def _dots(axis: Any, at: NDArray[Any], size: float, colour: str, marker: str, edge: str, zorder: int) -> None:
    axis.scatter(
        *at.T, s=size, color=colour, marker=marker, edgecolors=edge, linewidths=0.7, depthshade=False, zorder=zorder
    )


# ------------------------------------------------------------------ volatile and homogeneous


def regime(plt: Any, summary: Summary, examples: Mapping[str, Traces], study: Study) -> Any:
    """Draw state error over time with projection ticks: a domain with concentrated defects, and one with even ones."""
    keys = [("terminal", 0.0), *((key, study.table_budget) for key in dict.fromkeys(("periodic", *_methods(study))))]
    figure, axes = plt.subplots(
        2, len(examples), figsize=(PAGE * len(examples) / 2, 2.6), squeeze=False, sharex="col",
        gridspec_kw={"height_ratios": (4, 1), "hspace": 0.08, "wspace": 0.12},
    )  # fmt: skip
    for column, (name, traces) in enumerate(examples.items()):
        upper, lower = axes[:, column]
        scale = float(traces["terminal", 0.0].state_error[:, 0].max()) or 1.0
        for place, which in enumerate(keys):
            look, trace = look_of(which[0]), traces[which]
            error = trace.state_error[:, 0].numpy() / scale
            steps = np.arange(1, len(error) + 1)
            upper.plot(steps, error, color=look.colour, ls=look.dashes, label=label_of(which[0]))
            if which[0] != "terminal":
                at = steps[trace.projected[:, 0].numpy()]
                lower.vlines(at, place - 0.42, place + 0.42, color=look.colour, lw=0.9)
        held = summary["domains"][name]["concentration"]
        upper.set_title(f"{domain_label(summary, name)}: $C_{{{held['q']}}}$ = {held['mean']:.2f}")
        lower.set_ylim(len(keys) - 0.4, 0.4)
        lower.set_yticks(range(1, len(keys)), [label_of(which[0]) if column == 0 else "" for which in keys[1:]])
        lower.grid(False)
        lower.tick_params(axis="y", length=0)
        lower.spines["left"].set_visible(False)
        lower.set_xlabel("step")
    axes[0, 0].set_ylabel("distance to stepwise\n(terminal's largest is 1)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), bbox_to_anchor=(0.5, 1.06))
    return figure


# ------------------------------------------------------------------ the kappa sweep

_RATIOS = {
    0.125: "88% lower", 0.25: "75% lower", 0.5: "50% lower", 1.0: "equal", 2.0: "2 times",
    4.0: "4 times", 8.0: "8 times", 16.0: "16 times", 32.0: "32 times",
}  # fmt: skip


def where_it_helps(plt: Any, summary: Summary, key: str) -> Any:
    """Draw NEPE as a multiple of periodic's, against kappa and against defect concentration; better is up."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE, 2.6), sharey=True)
    swept, order = summary["kappa"], list(_DOMAIN_LOOKS)
    best, worst = 0.5, 1.3
    for name in sorted(swept, key=lambda name: (order.index(name) if name in order else 99, name)):
        colour, marker, filled = _DOMAIN_LOOKS.get(name, ("#CC79A7", "D", True))
        look = {"color": colour, "marker": marker, "markerfacecolor": colour if filled else "white", "markersize": 4}
        points = [
            (float(kappa), cell["concentration"]["mean"], cell["improvement"][key]["nepe"])
            for kappa, cell in swept[name].items()
            if cell["improvement"][key]["nepe"]["mean"] is not None and cell["concentration"]["mean"] is not None
        ]
        ratios = np.array([1 - gain["mean"] for _, _, gain in points])
        errors = np.array([gain["se"] or 0.0 for _, _, gain in points])
        line = "-" if filled else (0, (3, 1))
        pulls, concentrations = ([point[i] for point in points] for i in (0, 1))
        left.errorbar(pulls, ratios, errors, ls=line, lw=1.1, elinewidth=0.7, label=domain_label(summary, name), **look)
        right.errorbar(concentrations, ratios, errors, ls="none", elinewidth=0.7, **look)
        best, worst = min([best, *(ratios - errors)]), max([worst, *(ratios + errors)])
    for axis in (left, right):
        axis.axhspan(1, 1.1 * worst, color="#B2182B", alpha=0.06, lw=0)
        axis.axhline(1, color="#444444", lw=0.8)
    left.set_yscale("log")
    left.set_yticks(list(_RATIOS), list(_RATIOS.values()))
    left.yaxis.set_minor_locator(plt.NullLocator())
    left.set_ylim(1.1 * worst, max(0.03, 0.95 * best))  # inverted, so that better is up
    left.set_xlabel("restoring pull κ")
    right.set_xlabel("defect concentration $C_{0.2}$ of uncorrected rollouts")
    left.set_ylabel("NEPE relative to periodic")
    right.annotate("periodic is better", (0.98, 0.03), xycoords="axes fraction", ha="right", color="#B2182B", size=7)
    budget = summary["config"]["table_budget"]
    figure.tight_layout(rect=(0, 0, 0.83, 1))
    figure.legend(
        *left.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(0.835, 0.55),
        title=f"{label_of(key)}\nat B/T = {budget:.2f}", title_fontsize=7.5, alignment="left",
    )  # fmt: skip
    return figure


# ------------------------------------------------------------------ trajectories


def _shown(traces: Traces, study: Study) -> list[tuple[str, float]]:
    """Return the schedules and budgets that final states are drawn for, of those that were kept."""
    keys = ("periodic", "adaptive:paper", "adaptive:dp")
    wanted = [("terminal", 0.0), *((key, study.table_budget) for key in keys), ("stepwise", 1.0)]
    return [which for which in wanted if which in traces]


def trajectories(plt: Any, traces: Traces, circles: Sequence[Sequence[float]], study: Study) -> Any:
    """Draw one seed's trajectories under each schedule, with a raster of its projections and collisions below.

    The seed is the example that collides most if left alone. Thin lines are states kept in the second half of the
    rollout, the heavy one is the final state; parts inside an obstacle are red.
    """
    shown = _shown(traces, study)
    late = traces["terminal", 0.0].defects
    seed = int(late[len(late) // 2 :].sum(dim=0).argmax())
    wide = PAGE / (len(shown) + 0.5)  # of one map, which is square; half of one is left for the labels
    figure, axes = plt.subplots(
        2, len(shown), figsize=(PAGE, wide + 1.05), squeeze=False,
        gridspec_kw={"height_ratios": (wide, 0.36), "hspace": 0.06, "wspace": 0.06},
    )  # fmt: skip
    figure.subplots_adjust(
        left=0.45 / (len(shown) + 0.5), right=0.995, top=1 - 0.36 / (wide + 1.05), bottom=0.36 / (wide + 1.05)
    )
    for i, which in enumerate(shown):
        trace, (upper, lower) = traces[which], axes[:, i]
        _draw_paths(plt, upper, trace, seed, np.asarray(circles))
        count = int(trace.projected[:, seed].sum())
        upper.set_title(f"{label_of(which[0])}\n" + (f"{count} projections" if count else "only at the end"))
        _draw_raster(lower, trace, seed, look_of(which[0]).colour)
    axes[1, 0].set_yticks([0, 1], ["projected", "in collision"])
    words = "heavy: final trajectory   thin: earlier states   red: inside an obstacle   ○ start   $\\times$ goal"
    words += f"   ticks: updates 1 to {len(trace.projected)}"
    figure.text(0.5, 0.0, words, ha="center", fontsize=7, color="#444444")
    return figure


def _draw_paths(plt: Any, axis: Any, trace: Trace, seed: int, circles: NDArray[Any]) -> None:
    assert trace.along is not None
    lines = plt.matplotlib.collections.LineCollection
    for x, y, r in circles:
        axis.add_patch(plt.Circle((x, y), r, color="#CFCFCF", lw=0, zorder=1))
    kept = trace.along[len(trace.along) // 2 :, :, seed].numpy()
    final = trace.path[:, seed].numpy()
    for path, colour, width, opacity in [*((p, "#8A8A8A", 0.5, 0.55) for p in kept), (final, "#111111", 1.4, 1.0)]:
        pieces = np.stack([path[:-1], path[1:]], axis=1)
        hit = colliding(path, circles)
        axis.add_collection(lines(pieces[~hit], colors=colour, lw=width, alpha=opacity, zorder=2 + width))
        axis.add_collection(lines(pieces[hit], colors=_COLLISION, lw=max(0.9, width), zorder=3 + width))
    axis.plot(*final[0], marker="o", color="white", markeredgecolor="#111111", markersize=4, ls="none", zorder=6)
    axis.plot(*final[-1], marker="X", color="#111111", markeredgecolor="white", markersize=5.5, ls="none", zorder=6)
    axis.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal", xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color("#BBBBBB")


def _draw_raster(axis: Any, trace: Trace, seed: int, colour: str) -> None:
    projected = trace.projected[:, seed].numpy()
    inside = (trace.defects[:, seed].numpy() > _TOLERANCE) & ~projected
    steps = np.arange(1, len(projected) + 1)
    axis.vlines(steps[projected], -0.38, 0.38, color=colour, lw=0.7)
    axis.vlines(steps[inside], 0.62, 1.38, color=_COLLISION, lw=0.7, alpha=0.75)
    axis.set(xlim=(0, len(projected) + 1), ylim=(1.5, -0.5), yticks=[], xticks=[1, len(projected)])
    for label, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)  # so that neighbours do not touch
    axis.grid(False)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def colliding(path: NDArray[Any], circles: NDArray[Any]) -> NDArray[Any]:
    """Return which segments of a path (w, 2) enter one of the circles (m, 3), (w - 1,) bool."""
    ends = torch.from_numpy(np.ascontiguousarray(path.T, dtype=np.float64))
    gap = gaps(Obstacles(torch.from_numpy(circles.astype(np.float64))), ends[:, :-1], ends[:, 1:])
    return np.asarray((gap < -_TOLERANCE).any(dim=0))
