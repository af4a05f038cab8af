"""The tables and the figures of docs/results/quality.md, from what docs/make_quality.py measured."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from _page import HERE

from trimtab.evaluation.domains import SYNTHETIC
from trimtab.schedules.style import PAGE, figure_style, look_of

__all__ = ["BUDGETS", "DEFAULT", "JUDGED", "PATH", "QUARTER", "RIVALS", "RULED", "draw", "tables"]

BUDGETS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)
QUARTER = BUDGETS.index(0.25)
DEFAULT, PATH, JUDGED = "default", "dp for path", "race by quality"
RULED = {
    "accumulated defect": "accumulated",
    "event with a gap": "event",
    "above noise": "above-noise",
    "until below": "until-below",
}
"""Rules that know no budget: as tables and as `trimtab.evaluation.studies.rules` call them."""

RIVALS = (
    "periodic",
    "last steps",
    "best window",
    "geometric",
    "random ramp",
    "paper's rule",
    "planned",
    "dp for path",
    "dp for endpoint",
    *RULED,
)


def measured(cells: dict[str, Any]) -> list[str]:
    """The rivals that were measured in some cell."""
    return [rival for rival in RIVALS if any(rival in cell["rows"] for cell in cells.values())]


def behind_table(cells: dict[str, Any], measure: str, unit: str) -> list[str]:
    """How often the one is behind each rival by more than 2 SE, and by how much."""
    lines = [
        f"| rival | ahead by > 2 SE | within 2 SE | behind by > 2 SE | worst such loss, {unit} |",
        "|---" * 5 + "|",
    ]
    for rival in measured(cells):
        if measure == "path" and rival == PATH:
            continue
        points = []
        for name, cell in _with(cells, rival).items():
            scale = _scale(cell, measure)
            for i, gap in enumerate(cell["rows"][rival]["behind"].get(measure, ())):
                points.append((gap["mean"] / scale, gap["se"] / scale, f"{name} at {BUDGETS[i]:g}"))
        ahead = sum(mean < -2 * se for mean, se, _ in points)
        behind = [point for point in points if point[0] > 2 * point[1]]
        worst = max(behind, default=None)
        loss = "none" if worst is None else f"{worst[0]:.3f} ± {worst[1]:.3f} ({worst[2]})"
        lines.append(f"| {rival} | {ahead} | {len(points) - ahead - len(behind)} | {len(behind)} | {loss} |")
    return lines


def _scale(cell: dict[str, Any], measure: str) -> float:
    """What a loss is a share of: terminal projection's endpoint distance or quality; NEPE is a share already."""
    if measure in ("nepe", "path"):
        return 1.0
    found: dict[str, Any] = cell["terminal"] if measure == "endpoint" else cell["judged"]["terminal"]
    return float(found["mean"])


def losses(cells: dict[str, Any]) -> list[str]:
    """Every comparison of endpoints in which the default is behind a rival by more than 2 SE."""
    lines = ["| cell | B/T | rival | default | rival's | behind by |", "|---" * 6 + "|"]
    for name, cell in cells.items():
        for i, budget in enumerate(BUDGETS):
            ours = cell["rows"][DEFAULT]["endpoint"][i]["mean"]
            for rival in (rival for rival in RIVALS if rival in cell["rows"]):
                gap = cell["rows"][rival]["behind"]["endpoint"][i]
                if gap["mean"] > 2 * gap["se"]:
                    theirs = cell["rows"][rival]["endpoint"][i]["mean"]
                    by = f"{gap['mean']:.2g} ± {gap['se']:.1g}"
                    lines.append(f"| {name} | {budget:g} | {rival} | {ours:.3g} | {theirs:.3g} | {by} |")
    return lines


def endpoint_table(cells: dict[str, Any]) -> list[str]:
    """Endpoint distances at a quarter of the steps, in shares of terminal projection's."""
    shown_rivals = measured(cells)
    lines = ["| cell | " + " | ".join((DEFAULT, *shown_rivals)) + " |", "|---" * (2 + len(shown_rivals)) + "|"]
    everything = []
    for name, cell in cells.items():
        rows, scale = cell["rows"], cell["terminal"]["mean"]
        shares = [rows[m]["endpoint"][QUARTER]["mean"] / scale if m in rows else None for m in (DEFAULT, *shown_rivals)]
        best = min(share for share in shares if share is not None)
        shown = ["" if s is None else f"**{s:.3f}**" if s == best else f"{s:.3f}" for s in shares]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
        everything.append(shares)
    others = [shares for name, shares in zip(cells, everything, strict=True) if name not in SYNTHETIC]
    for words, kept in (("median", everything), ("median without the chains", others)):
        middle = [statistics.median([s for s in column if s is not None]) for column in zip(*kept, strict=True)]
        lines.append(f"| {words} | " + " | ".join(f"{share:.3f}" for share in middle) + " |")
    return lines


def default_table(cells: dict[str, Any]) -> list[str]:
    """What shares are of, and the endpoint distances of the default at every budget in such shares."""
    lines = [
        "| cell | terminal's distance | of it by one sample | " + " | ".join(f"B/T = {b:g}" for b in BUDGETS) + " |",
        "|---" * (3 + len(BUDGETS)) + "|",
    ]
    for name, cell in cells.items():
        terminal, found = cell["terminal"], cell["rows"][DEFAULT]["endpoint"]
        shown = [f"{terminal['mean']:.3g} ± {terminal['se']:.2g}", f"{terminal['largest']:.0%}"]
        shown += [f"{v['mean'] / terminal['mean']:.3f} ± {v['se'] / terminal['mean']:.3f}" for v in found]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


def distribution_table(cells: dict[str, Any]) -> list[str]:
    """Can final samples at a quarter of the steps be told from those of full projection?"""
    names = ("full", DEFAULT, "periodic", "terminal")
    lines = ["| cell | full, other seeds | default | periodic | terminal | smallest shift seen |", "|---" * 6 + "|"]
    for name, cell in cells.items():
        found = cell["told_apart"]
        shown = [f"{found[m]['value']:.2g}, p = {found[m]['p']:.2g}" for m in names]
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {found[DEFAULT]['shift']:.2g} |")
    apart = {m: [n for n, cell in cells.items() if cell["told_apart"][m]["p"] <= 0.05] for m in names}
    words = [f"{m} in {len(apart[m])}" + (f" ({', '.join(apart[m])})" if apart[m] else "") for m in names]
    return [*lines, "", f"Told apart at 5%, of {len(cells)} cells: {'; '.join(words)}."]


def told_apart_table(cells: dict[str, Any]) -> list[str]:
    """At how many points the final samples of each schedule can be told from those of full projection."""
    lines = [
        "| schedule | " + " | ".join(f"B/T = {b:g}" for b in BUDGETS) + " | all |",
        "|---" * (2 + len(BUDGETS)) + "|",
    ]
    for method in (DEFAULT, *measured(cells)):
        with_it = _with(cells, method).values()
        counts = [sum(cell["rows"][method]["p"][i] <= 0.05 for cell in with_it) for i in range(len(BUDGETS))]
        lines.append(f"| {method} | " + " | ".join(map(str, counts)) + f" | {sum(counts)} |")
    return lines


def quality_tables(cells: dict[str, Any]) -> list[str]:
    """By the domain's own judgement: every schedule at every budget, and how often ours are behind."""
    judged = {name: cell for name, cell in cells.items() if cell.get("judged")}
    if not judged:
        return []
    parts: list[str] = []
    for name, cell in judged.items():
        ends = cell["judged"]
        full, terminal = (f"{ends[key]['mean']:.4g} ± {ends[key]['se']:.1g}" for key in ("full", "terminal"))
        parts += [
            f"**Quality of {name}: {ends['name'].replace('_', ' ')}**, lower being better, of {cell['n']} samples; "
            f"full projection {full}, terminal {terminal}. The race by quality is `calibrate(..., quality=...)`.",
            "",
            "| schedule | " + " | ".join(f"B/T = {b:g}" for b in BUDGETS) + " |",
            "|---" * (1 + len(BUDGETS)) + "|",
        ]
        for method in (m for m in (DEFAULT, JUDGED, *RIVALS) if m in cell["rows"]):
            found = cell["rows"][method]["quality"]
            parts.append(f"| {method} | " + " | ".join(f"{v['mean']:.4g} ± {v['se']:.1g}" for v in found) + " |")
        parts.append("")
    for measure, words in (("judged", "The race by quality"), ("quality", "The default, priced for the endpoint,")):
        parts += [
            f"{words} against each rival, by quality:",
            "",
            *behind_table(judged, measure, "share of terminal's"),
            "",
        ]
    return parts


def tables(cells: dict[str, Any]) -> str:
    """The Markdown between the markers."""
    points = len(cells) * len(BUDGETS)
    samples = {key: _counts(cells, key, words) for key, words in (("n", "fresh samples"), ("n_more", "final samples"))}
    ties, compared, ahead, behind_count = _counted(cells)
    equal = compared - ties - ahead
    behind = [
        f"{points} comparisons per rival ({len(cells)} cells, B/T = {', '.join(f'{b:g}' for b in BUDGETS)}),",
        f"{samples['n']}, paired by seed, equal total cost. The default is identical to the rival",
        f"in {ties} of {compared} comparisons and ahead by more than 2 SE in {ahead}, so at most {equal} are between",
        f"equals. Of these, chance puts at most {0.0228 * equal:.0f} behind by more than 2 SE; {behind_count} are.",
    ]
    if set(RULED) & set(measured(cells)):
        behind += [
            "The last four rivals are rules that know no budget: they stop at it, and their values are tuned for each",
            "budget on the calibration seeds.",
        ]
    parts = [
        "**Endpoint: the default against each rival.** A loss is in shares of terminal projection's distance.",
        *behind,
        "",
        *behind_table(cells, "endpoint", "share of terminal's"),
        "",
        '**Path error: `objective="path"` (dp for path) against each rival**, by NEPE:',
        "",
        *behind_table(cells, "path", "NEPE"),
        "",
        "**Path error of the default**, which was not priced for it:",
        "",
        *behind_table(cells, "nepe", "NEPE"),
        "",
        "**Every endpoint at which the default is behind by more than 2 SE:**",
        "",
        *losses(cells),
        "",
        "**Endpoint distance at B/T = 0.25**, in shares of terminal projection's; the lowest in bold. A share can be",
        "no surer than what it is a share of. On the six Langevin chains (the first six cells) that is uncertain: a",
        "few samples, which end far from where full projection leads them, make up much of terminal projection's",
        "distance (the table after this one). The last row leaves the chains out.",
        "",
        *endpoint_table(cells),
        "",
        "**Endpoint distance of the default at every budget**, in the same shares, ± the standard error of the",
        "numerator alone. Before them: what they are shares of, ± its own standard error, and how much of that the one",
        "sample adds that ends farthest away.",
        "",
        *default_table(cells),
        "",
        f"**Distribution at B/T = 0.25**: energy distance of {samples['n_more']} to as many of full",
        "projection on other seeds.",
        "The last column is the shift, in units of their spread, that so many samples would have shown.",
        "",
        *distribution_table(cells),
        "",
        f"**Distribution at every budget**: in how many of {len(cells)} cells final samples can be told from those of",
        f"full projection at 5%, with {samples['n']}.",
        f"Chance alone does that in about {0.05 * len(cells):.1f}, and mostly in the same cells, as all schedules run",
        "the same seeds.",
        "",
        *told_apart_table(cells),
        "",
        *quality_tables(cells),
    ]
    return "\n".join(parts)


def _with(cells: dict[str, Any], method: str) -> dict[str, Any]:
    """The cells in which a method was measured."""
    return {name: cell for name, cell in cells.items() if method in cell["rows"]}


def _counted(cells: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return how many comparisons of endpoints are ties, how many there are, and how many are ahead and behind."""
    found = [
        gap for rival in RIVALS for c in _with(cells, rival).values() for gap in c["rows"][rival]["behind"]["endpoint"]
    ]
    ties = sum(gap["mean"] == gap["se"] == 0 for gap in found)
    ahead = sum(gap["mean"] < -2 * gap["se"] for gap in found)
    return ties, len(found), ahead, sum(gap["mean"] > 2 * gap["se"] for gap in found)


def _counts(cells: dict[str, Any], key: str, words: str) -> str:
    """How many samples a cell has, and how many one with a network."""
    usual = max(cell[key] for cell in cells.values())
    others = [cell[key] for cell in cells.values() if cell[key] != usual]
    number = ("no", "one", "two", "three", "four")[len(others)]
    fewer = f" ({others[0]} in the {number} with a network)" if others else ""
    assert len(set(others)) <= 1, "cells with a network have different numbers of samples"
    return f"{usual} {words} per cell{fewer}"


DRAWN = {
    DEFAULT: "raced",
    "periodic": "periodic",
    "last steps": "window",
    "paper's rule": "adaptive:paper",
    "planned": "planned",
}


def draw(cells: dict[str, Any]) -> None:
    """docs/images/quality.png: endpoint distance against budget."""
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
                ax.fill_between(BUDGETS, mean - se, mean + se, color=look.colour, alpha=0.2, lw=0)
                on_top = 3 if method == DEFAULT else 2  # often it is what a rival is
                ax.plot(
                    BUDGETS, mean, color=look.colour, ls=look.dashes, marker=look.marker, label=method, zorder=on_top
                )
            ax.set_title(name)
            ax.set_ylim(0)
        drawn.supxlabel("budget B/T, closing projection included", fontsize=8)
        drawn.supylabel("distance to full projection, terminal = 1", fontsize=8)
        handles, labels = axes[0][0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="upper center", ncol=len(DRAWN), bbox_to_anchor=(0.5, 1.03))
        drawn.tight_layout()
        drawn.savefig(HERE / "images" / "quality.png", dpi=150, bbox_inches="tight")
