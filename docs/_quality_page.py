"""The tables and the figure of docs/results/quality.md, from what docs/make_quality.py measured."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from _page import HERE

from trimtab_lab.domains import SYNTHETIC
from trimtab_lab.report.style import PAGE, figure_style, look_of

__all__ = ["DEFAULT", "JUDGED", "PATH", "draw", "tables"]

DEFAULT, PATH, JUDGED = "default", "dp for path", "race by quality"
RIVALS = (
    "periodic",
    "last steps",
    "best window",
    "geometric",
    "random ramp",
    "paper's rule",
    "planned",
    PATH,
    "dp for endpoint",
)
LEARNED = "cells with a network"


def points_of(cells: dict[str, Any], rival: str, measure: str) -> list[tuple[float, float, str]]:
    """Return mean and standard error of every comparison, as shares, with its cell and budget."""
    points = []
    for name, cell in cells.items():
        scale = 1.0 if measure == "path" else cell["terminal" if measure == "endpoint" else "judged"]
        if isinstance(scale, dict):
            scale = scale["mean"] if measure == "endpoint" else scale["terminal"]["mean"]
        gaps = cell["rows"].get(rival, {}).get("behind", {}).get(measure, ())
        at = (f"{name} at {budget:g}" for budget in cell["budgets"])
        points += [(gap["mean"] / scale, gap["se"] / scale, where) for gap, where in zip(gaps, at, strict=False)]
    return points


def behind_table(cells: dict[str, Any], measure: str, unit: str) -> list[str]:
    """Return how often ours is behind each rival by more than 2 SE, and by how much at worst."""
    lines = [
        f"| rival | ahead by > 2 SE | within 2 SE | behind by > 2 SE | worst such loss, {unit} |",
        "|---" * 5 + "|",
    ]
    for rival in RIVALS:
        points = points_of(cells, rival, measure)
        if not points or (measure == "path" and rival == PATH):
            continue
        ahead = sum(mean < -2 * se for mean, se, _ in points)
        behind = [point for point in points if point[0] > 2 * point[1]]
        worst = max(behind, default=None)
        loss = "none" if worst is None else f"{worst[0]:.3f} ± {worst[1]:.3f} ({worst[2]})"
        lines.append(f"| {rival} | {ahead} | {len(points) - ahead - len(behind)} | {len(behind)} | {loss} |")
    return lines


def counted(cells: dict[str, Any]) -> str:
    """Return how often the default is ahead, behind and identical, and how often chance would put it behind."""
    points = [point for rival in RIVALS for point in points_of(cells, rival, "endpoint")]
    ties = sum(mean == se == 0 for mean, se, _ in points)
    ahead = sum(mean < -2 * se for mean, se, _ in points)
    behind = sum(mean > 2 * se for mean, se, _ in points)
    equal = len(points) - ties - ahead
    return (
        f"ahead by more than 2 SE in {ahead} of {len(points)} comparisons, behind in {behind}, identical in {ties}. At "
        f"most {equal} are between equals, of which chance puts at most {0.0228 * equal:.1f} behind"
    )


def losses(cells: dict[str, Any]) -> list[str]:
    """Return every comparison of endpoints in which the default is behind a rival by more than 2 SE."""
    lines = ["| cell | B/T | rival | default | rival's | behind by |", "|---" * 6 + "|"]
    for name, cell in cells.items():
        for i, budget in enumerate(cell["budgets"]):
            ours = cell["rows"][DEFAULT]["endpoint"][i]["mean"]
            for rival in (rival for rival in RIVALS if rival in cell["rows"]):
                gap = cell["rows"][rival]["behind"]["endpoint"][i]
                if gap["mean"] > 2 * gap["se"]:
                    theirs = cell["rows"][rival]["endpoint"][i]["mean"]
                    by = f"{gap['mean']:.2g} ± {gap['se']:.1g}"
                    lines.append(f"| {name} | {budget:g} | {rival} | {ours:.3g} | {theirs:.3g} | {by} |")
    return lines


def endpoint_table(cells: dict[str, Any]) -> list[str]:
    """Return endpoint distances at a quarter of the projections, in shares of terminal projection's."""
    methods = (DEFAULT, *RIVALS)
    lines = ["| cell | " + " | ".join((*methods, "fewer steps")) + " |", "|---" * (2 + len(methods)) + "|"]
    everything: dict[str, list[float | None]] = {}
    for name, cell in cells.items():
        quarter, scale = cell["budgets"].index(0.25), cell["terminal"]["mean"]
        found = [cell["rows"][m]["endpoint"][quarter]["mean"] / scale if m in cell["rows"] else None for m in methods]
        best = min(share for share in found if share is not None)
        shown = ["" if share is None else f"**{share:.3f}**" if share == best else f"{share:.3f}" for share in found]
        shown.append(f"{cell['fewer'][quarter]['mean'] / scale:.1f}" if cell["fewer"] else "")
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
        everything[name] = found
    others = [found for name, found in everything.items() if name not in SYNTHETIC]
    for words, kept in (("median", list(everything.values())), ("median without the chains", others)):
        columns = [[share for share in column if share is not None] for column in zip(*kept, strict=True)]
        middle = [f"{statistics.median(column):.3f}" if column else "" for column in columns]
        lines.append(f"| {words} | " + " | ".join(middle) + " | |")
    return lines


def distribution_table(cells: dict[str, Any]) -> list[str]:
    """Return whether final samples at a quarter of the projections can be told from those of full projection."""
    names = ("full", DEFAULT, "periodic", "terminal")
    lines = ["| cell | full, other seeds | default | periodic | terminal | smallest shift seen |", "|---" * 6 + "|"]
    for name, cell in cells.items():
        found = cell["told_apart"]
        shown = [f"{found[m]['value']:.2g}, p = {found[m]['p']:.2g}" for m in names]
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {found[DEFAULT]['shift']:.2g} |")
    apart = {m: [n for n, cell in cells.items() if cell["told_apart"][m]["p"] <= 0.05] for m in names}
    words = [f"{m} in {len(apart[m])}" + (f" ({', '.join(apart[m])})" if apart[m] else "") for m in names]
    return [*lines, "", f"Told apart at 5%, of {len(cells)} cells: {'; '.join(words)}."]


def quality_tables(cells: dict[str, Any]) -> list[str]:
    """Return every schedule at every budget by the domain's own judgement, and how often ours are behind."""
    parts: list[str] = []
    for name, cell in cells.items():
        ends = cell["judged"]
        full, terminal = (f"{ends[key]['mean']:.4g} ± {ends[key]['se']:.1g}" for key in ("full", "terminal"))
        parts += [
            f"**Quality of {name}: {ends['name'].replace('_', ' ')}**, lower is better, {cell['n']} samples; full "
            f"projection {full}, terminal {terminal}. The race by quality is `calibrate(..., quality=...)`.",
            "",
            "| schedule | " + " | ".join(f"B/T = {b:g}" for b in cell["budgets"]) + " |",
            "|---" * (1 + len(cell["budgets"])) + "|",
        ]
        for method in (m for m in (DEFAULT, JUDGED, *RIVALS) if m in cell["rows"]):
            found = cell["rows"][method]["quality"]
            parts.append(f"| {method} | " + " | ".join(f"{v['mean']:.4g} ± {v['se']:.1g}" for v in found) + " |")
        parts.append("")
    for measure, words in (("judged", "The race by quality"), ("quality", "The default, priced for the endpoint,")):
        if any(measure not in cell["rows"][PATH]["behind"] for cell in cells.values()):
            continue  # the race was measured with version 0.3
        parts += [
            f"{words} against each rival, by quality:",
            "",
            *behind_table(cells, measure, "share of terminal's"),
            "",
        ]
    return parts


def tables(cells: dict[str, Any]) -> str:
    """Return the Markdown between the markers."""
    learned = {name: cell for name, cell in cells.items() if cell["n"] < max(c["n"] for c in cells.values())}
    judged = {name: cell for name, cell in cells.items() if cell["judged"]}
    sizes = "; ".join(
        f"{words}: {cell['n']} samples ({cell['n_more']} for distributions), B/T = "
        + ", ".join(f"{b:g}" for b in cell["budgets"])
        for words, some in (("synthetic cells", cells), (LEARNED, learned))
        if (cell := next(iter(some.values()), None))
    )
    return "\n".join(
        [
            f"Paired by seed, equal total cost; {sizes}.",
            "",
            "**Endpoint: the default against each rival.** A loss is in shares of terminal projection's distance. The",
            f"default is {counted(cells)}. In {LEARNED} it is {counted(learned)}.",
            "",
            *behind_table(cells, "endpoint", "share of terminal's"),
            "",
            '**Path error: `objective="path"` (dp for path) against each rival**, by NEPE:',
            "",
            *behind_table(cells, "path", "NEPE"),
            "",
            "**Every endpoint at which the default is behind by more than 2 SE:**",
            "",
            *losses(cells),
            "",
            "**Endpoint distance at B/T = 0.25**, in shares of terminal projection's; the lowest in bold. On the six",
            "chains a few samples make up much of that distance, so the last row leaves them out. *Fewer steps* takes",
            "a quarter of the steps and projects after each: as many projections, another discretisation.",
            "",
            *endpoint_table(cells),
            "",
            "**Distribution at B/T = 0.25**: energy distance to final samples of full projection on other seeds. The",
            "last column is the shift, in units of their spread, that so many samples would have shown.",
            "",
            *distribution_table(cells),
            "",
            *(quality_tables(judged) if judged else []),
        ]
    )


DRAWN = {DEFAULT: "raced", "periodic": "periodic", "last steps": "window", "paper's rule": "adaptive:paper"}
DRAWN |= {"planned": "planned"}


def draw(cells: dict[str, Any]) -> None:
    """Draw docs/images/quality.png: endpoint distance against budget."""
    with figure_style() as plt:
        columns = 4
        lines = -(-len(cells) // columns)
        drawn, axes = plt.subplots(lines, columns, figsize=(PAGE, 1.55 * lines), sharex=True, squeeze=False)
        for ax in axes.flat[len(cells) :]:
            ax.set_visible(False)
        for ax, (name, cell) in zip(axes.flat, cells.items(), strict=False):
            scale = cell["terminal"]["mean"]
            for method, key in DRAWN.items():
                look, found = look_of(key), cell["rows"][method]["endpoint"]
                mean = torch.tensor([v["mean"] for v in found]) / scale
                se = torch.tensor([v["se"] for v in found]) / scale
                ax.fill_between(cell["budgets"], mean - se, mean + se, color=look.colour, alpha=0.2, lw=0)
                line = {"color": look.colour, "ls": look.dashes, "marker": look.marker, "label": method}
                ax.plot(cell["budgets"], mean, zorder=3 if method == DEFAULT else 2, **line)  # often what a rival is
            ax.set_title(name)
            ax.set_ylim(0)
        drawn.supxlabel("budget B/T, closing projection included", fontsize=8)
        drawn.supylabel("distance to full projection, terminal = 1", fontsize=8)
        handles, labels = axes[0][0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="upper center", ncol=len(DRAWN), bbox_to_anchor=(0.5, 1.03))
        drawn.tight_layout()
        drawn.savefig(HERE / "images" / "quality.png", dpi=150, bbox_inches="tight")
