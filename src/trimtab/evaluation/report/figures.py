"""The figures of a run, as PNG for the screen and SVG and PDF for print."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.evaluation.domains import dynamics_of
from trimtab.evaluation.report.examples import traces_of
from trimtab.evaluation.report.formats import domain_label
from trimtab.evaluation.report.frontier_figure import frontier
from trimtab.evaluation.report.graph_figure import networks
from trimtab.evaluation.report.pdm_figure import trajectories
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.domain_info import read_about
from trimtab.evaluation.studies.run_files import RunFiles
from trimtab.evaluation.studies.traces import Trace
from trimtab.schedules.style import FORMATS, PAGE, figure_style, label_of, look_of

__all__ = ["write_figures"]

Summary = Mapping[str, Any]
Draw = Callable[[Any], Any]

# domains come in pairs, a smooth one and a volatile one: one colour a pair, the volatile one filled
_DOMAIN_LOOKS = {
    "so3": ("#0072B2", "o", False),
    "so3-impulse": ("#0072B2", "o", True),
    "se3": ("#D55E00", "s", False),
    "se3-lever": ("#D55E00", "s", True),
    "terrain": ("#009E73", "^", False),
    "terrain-ridge": ("#009E73", "^", True),
}
_OTHER_DOMAIN = ("#CC79A7", "D", True)


def write_figures(files: RunFiles, summary: Summary) -> list[Path]:
    """Draw every figure a run has the numbers for into `figures/`."""
    study = Study.from_summary(summary)
    said = read_about(files, study.domains)
    figures: dict[str, Draw] = {}
    for ending, domains in _by_dynamics(study.domains).items():
        for metric, label in (("nepe", "NEPE"), ("endpoint", "endpoint distance")):
            figures[f"{metric}{ending}"] = lambda plt, names=domains, metric=metric, label=label: frontier(  # type: ignore[misc]
                plt, summary, metric, label, names
            )
    examples: dict[str, dict[tuple[str, float], Trace]] = {
        name: traces_of(files, study, name)
        for name in ("terrain", "terrain-ridge")
        if name in study.domains and study.example_seeds and said[name].get("surface")
    }
    if examples:
        hilly = "terrain-ridge" if "terrain-ridge" in examples else "terrain"
        figures["title"] = lambda plt: title(plt, said[hilly]["surface"], examples[hilly], study)
        figures["regime"] = lambda plt: regime(plt, summary, examples, study)
    if "pdm" in study.domains and study.example_seeds:
        kept = traces_of(files, study, "pdm")
        circles = said["pdm"].get("obstacles") or []
        figures["trajectories"] = lambda plt: trajectories(plt, kept, circles, study)
    for name in study.domains:
        if said[name].get("graph") and study.example_seeds:
            of_network = traces_of(files, study, name)
            figures[f"network-{name}"] = lambda plt, name=name, kept=of_network: networks(  # type: ignore[misc]
                plt, kept, said[name]["graph"], study
            )
    swept = [cell["improvement"] for kappas in summary.get("kappa", {}).values() for cell in kappas.values()]
    for key in swept[0] if swept else ():
        name = "where-it-helps" + ("" if key == "adaptive:paper" else f"-{key.replace(':', '-')}")
        figures[name] = lambda plt, key=key: where_it_helps(plt, summary, key)  # type: ignore[misc]
    written = []
    for name, draw in figures.items():
        with figure_style() as plt:
            figure = draw(plt)
            for ending, metadata in FORMATS.items():
                written.append(files.put(f"figures/{name}.{ending}", _drawn(figure, name, ending, metadata)))
    return written


def _by_dynamics(domains: Sequence[str]) -> dict[str, list[str]]:
    """The domains of each figure, by the ending of its name: flows have figures of their own."""
    groups: dict[str, list[str]] = {}
    for name in domains:
        dynamics = dynamics_of(name)
        groups.setdefault(f"-{dynamics}" if dynamics and dynamics != "langevin" else "", []).append(name)
    return groups


def _drawn(figure: Any, name: str, ending: str, metadata: dict[str, Any]) -> bytes:
    crop = None if name == "title" else "tight"  # the title's axes are larger than the page on purpose
    file = io.BytesIO()
    figure.savefig(file, format=ending, metadata=metadata, bbox_inches=crop, pad_inches=0.03)
    return file.getvalue()


# ------------------------------------------------------------------ the title figure


def title(plt: Any, ground: Mapping[str, Any], traces: Mapping[tuple[str, float], Trace], study: Study) -> Any:
    """One seed's path over the terrain under terminal, stepwise and adaptive correction."""
    shown = [("terminal", 0.0), ("stepwise", 1.0), (_method(study), study.table_budget)]
    paths = {which: traces[which].path[:, 0].numpy() for which in shown}
    low, high = np.vstack(list(paths.values())).min(axis=0), np.vstack(list(paths.values())).max(axis=0)
    figure = plt.figure(figsize=(PAGE, 1.8))
    for i, which in enumerate(shown):
        # larger than its third of the page: a 3-D drawing never fills its own axes
        axis = figure.add_axes((i / 3 - 0.07, -0.25, 0.47, 1.45), projection="3d", computed_zorder=False)
        axis.patch.set_alpha(0)
        _draw_surface(axis, ground, low, high)
        path, projected = paths[which], traces[which].projected[:, 0].numpy()
        look = look_of(which[0])
        if which[0] != "stepwise":
            axis.plot(*paths["stepwise", 1.0].T, color="#000000", lw=0.8, ls=(0, (2, 1.5)), zorder=3)
            _dots(axis, path[1:][projected], 8, look.colour, "o", "white", 5)
        axis.plot(*path.T, color=look.colour, lw=1.4, zorder=4)
        _dots(axis, path[:1], 18, "white", "o", look.colour, 6)
        _dots(axis, path[-1:], 26, look.colour, "X", "white", 6)
        axis.view_init(elev=36, azim=-72)
        axis.set_box_aspect((1.7, 1.0, 0.5), zoom=1.02)
        axis.set_axis_off()
        count = int(projected.sum())
        words = f"{label_of(which[0])}: {count or 'only the closing'} projection{'s' * (count > 1)}"
        figure.text((i + 0.5) / 3, 0.93, words, ha="center", fontsize=8.5)
    words = "○ start   $\\times$ end   • projection   dashed: the stepwise path"
    figure.text(0.5, 0.02, words, ha="center", fontsize=7, color="#444444")
    return figure


def _draw_surface(axis: Any, ground: Mapping[str, Any], low: NDArray[Any], high: NDArray[Any]) -> None:
    """The terrain around the paths, which lie between the corners `low` and `high`."""
    room = 0.25
    u, v, z = (np.asarray(ground[name], dtype=float) for name in ("x", "y", "z"))
    near_u, near_v = ((c >= low[i] - room) & (c <= high[i] + room) for i, c in enumerate((u, v)))
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


def _method(study: Study) -> str:
    """The schedule that examples show: the default, the paper's, the first there is, or else periodic."""
    others = [key for key in study.schedules if key not in ("terminal", "stepwise", "periodic")]
    known = [key for key in ("raced", "adaptive:paper") if key in others] or others or ["periodic"]
    return known[0]


# ------------------------------------------------------------------ volatile and homogeneous


def regime(plt: Any, summary: Summary, examples: Mapping[str, Mapping[tuple[str, float], Trace]], study: Study) -> Any:
    """State error over time with projection ticks: where defect is concentrated, and where it is not."""
    names = [name for name in ("terrain-ridge", "terrain") if name in examples]
    words = {"terrain-ridge": "volatile", "terrain": "homogeneous"}
    between = dict.fromkeys(("periodic", _method(study)))
    keys = [("terminal", 0.0), *((key, study.table_budget) for key in between)]
    figure, axes = plt.subplots(
        2, len(names), figsize=(PAGE * len(names) / 2, 2.6), squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": (4, 1), "hspace": 0.08, "wspace": 0.12},
    )  # fmt: skip
    for column, name in enumerate(names):
        upper, lower = axes[:, column]
        traces = examples[name]
        scale = float(traces["terminal", 0.0].state_error[:, 0].max()) or 1.0
        for place, which in enumerate(keys):
            look, trace = look_of(which[0]), traces[which]
            error = trace.state_error[:, 0].numpy() / scale
            steps = np.arange(1, len(error) + 1)
            upper.plot(steps, error, color=look.colour, ls=look.dashes, label=label_of(which[0]))
            if which[0] != "terminal":
                at = steps[trace.projected[:, 0].numpy()]
                lower.vlines(at, place - 0.42, place + 0.42, color=look.colour, lw=0.9)
        upper.set_title(f"{domain_label(summary, name)} ({words[name]})")
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


# ------------------------------------------------------------------ where it helps


def where_it_helps(plt: Any, summary: Summary, key: str) -> Any:
    """NEPE as a multiple of periodic's, against kappa and against defect concentration; better is up."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE, 2.6), sharey=True)
    swept = summary["kappa"]
    best, worst = 0.5, 1.3
    for name in sorted(
        swept, key=lambda name: (list(_DOMAIN_LOOKS).index(name) if name in _DOMAIN_LOOKS else 99, name)
    ):
        colour, marker, filled = _DOMAIN_LOOKS.get(name, _OTHER_DOMAIN)
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
    left.set_ylim(1.1 * worst, max(0.03, 0.95 * best))  # the wrong way round, so that better is up
    left.set_xlabel("restoring pull κ")
    right.set_xlabel("defect concentration $C_{0.2}$ of uncorrected rollouts")
    left.set_ylabel("NEPE beside periodic's")
    right.annotate("periodic is better", (0.98, 0.03), xycoords="axes fraction", ha="right", color="#B2182B", size=7)
    budget = summary["config"]["table_budget"]
    figure.tight_layout(rect=(0, 0, 0.83, 1))
    figure.legend(
        *left.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(0.835, 0.55),
        title=f"{label_of(key)}\nat B/T = {budget:.2f}", title_fontsize=7.5, alignment="left",
    )  # fmt: skip
    return figure


_RATIOS = {
    0.125: "88% lower", 0.25: "75% lower", 0.5: "50% lower", 1.0: "equal", 2.0: "2 times",
    4.0: "4 times", 8.0: "8 times", 16.0: "16 times", 32.0: "32 times",
}  # fmt: skip
