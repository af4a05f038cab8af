"""The page docs/results/online.md and the README's first figure, from what docs/make_online.py measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import median
from textwrap import fill
from typing import Any

import torch
from _page import HERE
from torch import Tensor

from trimtab_lab.report.style import PAGE, figure_style

__all__ = ["publish"]

TWINS, SIGN = "the line", "the line, no twins"
KINDS = {"even": "even spacing", "last": "last steps", "first": "first steps"}
WAYS = {"1 iteration": "one iteration at every step", "2 iterations": "two iterations at every step"}
MORE = 1.1  # a rule takes no more work if it takes at most this many times the line's
RESAMPLED = 1000
Cells = dict[str, Any]


# ------------------------------------------------------------------ numbers


def top_share(values: Tensor) -> float:
    """Return how much of a sum the largest twentieth of the values makes up."""
    ordered = values.abs().sort(descending=True).values
    return float(ordered[: max(1, round(len(values) / 20))].sum() / ordered.sum().clamp(min=1e-300))


def farther(mine: Tensor, other: Tensor) -> bool:
    """Whether samples end farther than the others, paired, by 2 SE: in the mean, or in pairs if few decide the mean."""
    gap = mine - other
    if float(gap.abs().max()) == 0:
        return False
    if top_share(gap) > 0.5:
        lost, won = int((gap > 0).sum()), int((gap < 0).sum())
        return lost - won > 2 * math.sqrt(lost + won)
    return float(gap.mean()) > 2 * float(gap.std()) / math.sqrt(len(gap))


def summary_of(row: Cells, terminal: Tensor, full_work: float) -> Cells:
    """Return a row as shares: of terminal's distance, with an interval if one can be kept, and of full's work."""
    distance = torch.tensor(row["distance"]).double()
    found = {
        "mean": float(distance.mean() / terminal.mean()),
        "median": float(distance.median() / terminal.median()),
        "work": float(torch.tensor(row["work"]).double().mean() / full_work),
    }
    if max(top_share(distance), top_share(terminal)) <= 0.5:
        draws = torch.randint(len(distance), (RESAMPLED, len(distance)), generator=torch.Generator().manual_seed(0))
        ratios = distance[draws].mean(dim=1) / terminal[draws].mean(dim=1)
        found["low"], found["high"] = (float(ratios.quantile(at)) for at in (0.025, 0.975))
    if "quality" in row:
        quality = torch.tensor(row["quality"]).double()
        found["quality"] = [float(quality.mean()), float(quality.median())]
    return found


def system_of(cells: Cells, name: str, shares: Sequence[float]) -> Cells:
    """Return everything that the page says about a system."""
    known = cells[f"rules {name}"]
    rows = known["rows"]
    terminal = torch.tensor(rows["terminal"]["distance"]).double()
    full_work = float(torch.tensor(rows["full"]["work"]).double().mean())
    found: Cells = {label: summary_of(row, terminal, full_work) for label, row in rows.items()}
    found["facts"] = {"samples": len(terminal), "T": known["T"], "full work": full_work, "counted": known["counted"]}
    simple = ["terminal", *(f"{kind} {share:g}" for kind in KINDS for share in shares), *WAYS]
    for share in shares:
        for label, twins in ((TWINS, 16), (SIGN, 0)):
            done = cells[f"line {name} {share} {twins}"]
            row, n = done["row"], len(terminal)
            mine = summary_of(row, terminal, full_work)
            limit = MORE * max(mine["work"], share)
            rivals = [rule for rule in simple if rule in rows and found[rule]["work"] <= limit] or ["terminal"]
            best = min(rivals, key=lambda rule: found[rule]["mean"])
            distance = torch.tensor(row["distance"]).double()
            control = torch.tensor(row["control"]) > 0
            mine |= {
                "best": best,
                "behind": farther(distance, torch.tensor(rows[best]["distance"]).double()),
                "behind even": farther(distance, torch.tensor(rows[f"even {share:g}"]["distance"]).double()),
                "behind terminal": farther(distance, terminal),
                "without control": float(distance[~control].mean() / terminal[~control].mean()),
                "control": float(control.double().mean()),
                "learning": done["learning work"] / full_work,
                "twins": done["twins work"] / full_work,
                "fitting": done["fitting"],
                "in use": max(set(done["in use"]), key=done["in use"].count),
                "left out": done["left out"],
                "samples": n,
            }
            found[f"{label} {share:g}"] = mine
    return found


def calls_of(cells: Cells, called: Sequence[str]) -> Cells:
    """Return distances at equal cost as shares of terminal's, and calls per run, by sampler."""
    found: Cells = {}
    for name in called:
        known = cells[f"calls {name}"]
        terminal = torch.tensor(known["terminal"]).double()
        found[name] = {"T": known["T"], "n": known["n"], "rows": {}}
        for label, row in known["rows"].items():
            distance = torch.tensor(row["distance"]).double()
            rest = {"mean": float(distance.mean() / terminal.mean()), "cost": row["cost"], "called": row["called"]}
            rest["median"] = float(distance.median() / terminal.median())
            if label.endswith("priced"):
                cost = label.split(",")[0]
                others = {
                    rival: torch.tensor(known["rows"][f"{cost}, {rival}"]["distance"]).double()
                    for rival in ("even", "without")
                }
                rest["behind"] = [rival for rival, values in others.items() if farther(distance, values)]
            found[name]["rows"][label] = rest
    return found


# ------------------------------------------------------------------ the page


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, ["---"] * len(titles), *rows])


def shown(row: Cells) -> str:
    """Return a mean with its interval, and the median."""
    if "low" not in row:
        return f"{row['mean']:.3f}, no interval; {row['median']:.3f}"
    return f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f}); {row['median']:.3f}"


def in_words(rule: str) -> str:
    """Return the name of a rule."""
    kind = rule.split(" ")[0]
    return WAYS.get(rule) or KINDS.get(kind) or ("one at the end" if rule == "terminal" else rule)


def medians(systems: Cells, shares: Sequence[float]) -> Cells:
    """Return the medians over systems of every rule at every share."""
    found: Cells = {}
    for share in shares:
        rows = {
            "even": [one[f"even {share:g}"]["mean"] for one in systems.values()],
            "last": [one[f"last {share:g}"]["mean"] for one in systems.values()],
            "best": [one[one[f"{TWINS} {share:g}"]["best"]]["mean"] for one in systems.values()],
            TWINS: [one[f"{TWINS} {share:g}"]["mean"] for one in systems.values()],
            SIGN: [one[f"{SIGN} {share:g}"]["mean"] for one in systems.values()],
        }
        found[f"{share:g}"] = {label: median(values) for label, values in rows.items()}
    return found


def losses(systems: Cells, shares: Sequence[float]) -> tuple[list[str], list[str]]:
    """Return the cells in which the line is farther than the best simple rule, and than one at the end."""
    rules, ends = [], []
    for label in (TWINS, SIGN):
        for name, one in systems.items():
            for share in shares:
                mine = one[f"{label} {share:g}"]
                best = one[mine["best"]]
                if mine["behind"]:
                    rules.append(
                        f"- {label}, {name} at {share:g}: {mine['mean']:.3f} ({mine['median']:.3f}); "
                        f"{in_words(mine['best'])} {best['mean']:.3f} ({best['median']:.3f})"
                    )
                if mine["behind terminal"]:
                    ends.append(f"- {label}, {name} at {share:g}: {mine['mean']:.3f} ({mine['median']:.3f})")
    return rules, ends


def page(found: Cells, shares: Sequence[float]) -> str:
    """Return the page."""
    systems, middle = found["systems"], found["medians"]
    keys = [f"{share:g}" for share in shares]
    rows = {"even": "even spacing", "last": "last steps", "best": "best simple rule", TWINS: TWINS, SIGN: SIGN}
    first = [[words, *(f"{middle[key][label]:.2f}" for key in keys)] for label, words in rows.items()]
    rules, ends = losses(systems, shares)
    n_cells = len(systems) * len(shares)
    counts = {
        label: (
            sum(systems[name][f"{label} {key}"]["behind"] for name in systems for key in keys),
            sum(systems[name][f"{label} {key}"]["behind even"] for name in systems for key in keys),
            sum(systems[name][f"{label} {key}"]["behind terminal"] for name in systems for key in keys),
        )
        for label in (TWINS, SIGN)
    }
    verdict = [
        [label, f"{behind} of {n_cells}", f"{even} of {n_cells}", f"{end} of {n_cells}"]
        for label, (behind, even, end) in counts.items()
    ]
    cost = []
    for name, one in systems.items():
        facts = one["facts"]
        unit = "iterations" if facts["counted"] else "projections"
        some = [one[f"{TWINS} {key}"] for key in keys]
        cost.append(
            [
                name,
                f"{facts['T']}",
                f"{facts['full work']:.0f} {unit}",
                f"{facts['samples']}",
                " / ".join(f"{row['learning']:.0f}" for row in some),
                " / ".join(f"{row['twins']:.0f}" for row in some),
                " / ".join(f"{row['control']:.0%}" for row in some),
                f"{max(row['fitting'] for row in some):.2g}",
            ]
        )
    parts = [
        "# Final samples against work",
        "Printed by `python docs/make_online.py`, with the README's first figure.",
        f"""What a user pays is work, and what they want is final samples as good as those of full projection. So the
        page puts one against the other on {len(systems)} systems, at budgets of 5, 10, 25 and 50% of full projection's
        work. *The line* is `Corrector(constraint, budget, n_steps)`. It learns on two batches of 16, which are
        production too, and is measured on later batches, whose seeds chose nothing. The line without twins is
        `Learner(budget, twins=0)`: it leaves out ways by the sign of the first batch alone.""",
        """Distance is the mean distance of final samples to those of full projection on the same noise: 0 is full
        projection, 1 is one projection at the end. Work is solver iterations, or projections where the solver counts
        none, as a share of full projection's; the line's includes its control samples. Even spacing, last steps and
        first steps project as often as makes their work about equal to the budget, found on the learning seeds; the
        brackets below say what they took.""",
        "![Distance to full projection against work, by system](../images/online.png)",
        "## In short",
        "Median distance over the systems:",
        table(["at a share of full projection's work", *keys], first),
        f"""The *best simple rule* is chosen on the measured samples themselves, among even spacing, last steps, first
        steps, one at the end, and one or two iterations at every step, if it takes at most {MORE:g} times the work of
        the line (or of the budget, if that is more). It is what a user would have who knew the answer. Cells in which
        the line is farther by more than 2 standard errors, paired by sample:""",
        table(["", "than the best simple rule", "than even spacing at equal work", "than one at the end"], verdict),
        """Where a twentieth of the samples makes up over half of a sum, the mean has no interval that holds. There
        none is given, and pairs are counted instead: farther in more of them by 2 standard errors.""",
        "### Every loss",
        "Mean (median) distance. Against the best simple rule at no more work:",
        "\n".join(rules) or "None.",
        "Against one projection at the end:",
        "\n".join(ends) or "None.",
        "## What learning costs",
        """In units of full projection's work for one sample, at the four budgets: the first two batches (32 samples,
        which are production too), and the twins (16 samples, run again under full projection and every candidate,
        once). Then how many of the later samples were control, and seconds for fitting, the largest.""",
        table(
            [
                "system",
                "T",
                "full projection, per sample",
                "measured",
                "first two batches",
                "twins",
                "control",
                "fitting, s",
            ],
            cost,
        ),
        "## Every system",
        "Mean distance (95% interval from a paired bootstrap); then the median sample's. In brackets, the work.",
    ]
    for name, one in systems.items():
        lines = []
        for label in (TWINS, SIGN, *KINDS):
            each = [one[f"{label} {key}"] for key in keys]
            lines.append([KINDS.get(label, label), *(f"{shown(row)} [{row['work']:.3f}]" for row in each)])
        lines.append(["in use", *(one[f"{TWINS} {key}"]["in use"] for key in keys)])
        others = [
            f"{in_words(rule)} {shown(one[rule])} [{one[rule]['work']:.3f}]"
            for rule in ("terminal", *WAYS)
            if rule in one
        ]
        left_out = one[f"{TWINS} {keys[-1]}"]["left out"]
        parts += [f"### {name}", table(["", *keys], lines), f"At any budget: {'; '.join(others)}."]
        if left_out:
            parts.append(f"Left out by the sign, at {keys[-1]}: {', '.join(left_out)}.")
        if "quality" in one["full"]:
            what = {"molecules": "Energy, kcal/mol", "robot paths": "Share without a collision"}[name.split(",")[0]]
            named = {"full projection": "full", "one at the end": "terminal"}
            named |= {f"{KINDS.get(k, k)} at {key}": f"{k} {key}" for key in keys for k in (TWINS, SIGN, "even")}
            named |= {words: way for way, words in WAYS.items() if way in one}
            values = [
                f"{words} {one[row]['quality'][0]:.3g} ({one[row]['quality'][1]:.3g})" for words, row in named.items()
            ]
            parts.append(f"{what}, mean (median): {'; '.join(values)}.")
    parts += ["## Calls", *calls_text(found["calls"])]
    text = [part if part.startswith(("|", "#", "-", "!")) else filled(part) for part in parts]
    return "\n\n".join(text) + "\n"


def filled(text: str) -> str:
    """Return a paragraph in lines of at most 120 characters."""
    return fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def calls_text(calls: Cells) -> list[str]:
    """Return the paragraphs about calls that cost something."""
    rows, labels = [], list(dict.fromkeys(label.split(",")[0] for one in calls.values() for label in one["rows"]))
    behind = []
    for name, one in calls.items():
        for label in labels:
            three = [one["rows"][f"{label}, {kind}"] for kind in ("even", "without", "priced")]
            means = [f"{row['mean']:.3f} ({row['median']:.3f})" for row in three]
            rows.append([f"`{name}`", label, *means, " / ".join(f"{row['called']:.0f}" for row in three)])
            names = {"even": "even spacing", "without": "the program without the price of a call"}
            if three[2]["behind"]:
                behind.append(f"`{name}` at {label} ({' and '.join(names[rival] for rival in three[2]['behind'])})")
    size = max((one["n"] for one in calls.values()), default=0)
    return [
        f"""Where a call of the solver costs a, and each row in it b, a step should be corrected for the whole batch or
        not at all. The program prices this: it calls if what the rows gain is worth the call. Batches of {size} whole
        projections with simulated costs, at a quarter of full projection's cost; mean (median) distance. *Even spacing*
        projects all rows at the same steps. *Without* is the program over rows, at the largest budget that costs no
        more on a learning batch.""",
        table(["sampler", "cost", "even spacing", "without", "priced calls", "calls per run"], rows),
        f"Priced calls are farther, by 2 standard errors, in {', '.join(behind)}."
        if behind
        else "Priced calls are nowhere farther by 2 standard errors.",
        """`Learner(budget, unit="second")` does this with the costs that it measures: a per call, b per row, c per
        iteration.""",
    ]


# ------------------------------------------------------------------ the figure

LOOK = {
    TWINS: ("#0072B2", "s", "-", 1.9),
    SIGN: ("#56B4E9", "D", (0, (4, 1.5)), 1.2),
    "even": ("#E69F00", "o", (0, (3, 1)), 1.2),
    "last": ("#000000", ">", (0, (1, 1.2)), 1.0),
    "first": ("#999999", "<", (0, (1, 1.2)), 1.0),
}
HIGHEST = 1.35


def draw(systems: Cells, shares: Sequence[float]) -> None:
    """Draw docs/images/online.png: one panel for each system."""
    columns = 4
    lines = -(-len(systems) // columns)
    with figure_style() as plt:
        drawn, axes = plt.subplots(lines, columns, figsize=(PAGE, 1.5 * lines + 0.7), squeeze=False)
        for axis in axes.flat[len(systems) :]:
            axis.set_visible(False)
        for axis, (name, one) in zip(axes.flat, systems.items(), strict=False):
            axis.axhline(1, color="#BBBBBB", lw=0.8)
            for label in ("first", "last", "even", SIGN, TWINS):
                colour, marker, dashes, width = LOOK[label]
                points = [one[f"{label} {share:g}"] for share in shares]
                x, y = [row["work"] for row in points], [min(row["mean"], HIGHEST - 0.03) for row in points]
                style = {"color": colour, "marker": marker, "ls": dashes, "lw": width, "ms": 3.2}
                axis.plot(x, y, label=KINDS.get(label, label), zorder=4 if label == TWINS else 3, **style)
                if label == TWINS and all("low" in row for row in points):
                    ends = ([row[end] for row in points] for end in ("low", "high"))
                    axis.fill_between(x, *ends, color=colour, alpha=0.18, lw=0)
            for way, sign in (("1 iteration", "1"), ("2 iterations", "2")):
                if way in one:
                    row = one[way]
                    at = row["work"], min(row["mean"], HIGHEST - 0.03)
                    axis.plot(*at, "o", ms=7.5, mfc="white", mec="#D55E00", mew=1, zorder=5)
                    axis.text(*at, sign, color="#D55E00", ha="center", va="center_baseline", fontsize=6.5, zorder=6)
            axis.set(xscale="log", xlim=(0.025, 1.0), ylim=(-0.06, HIGHEST), title=name)
            axis.set_xticks([0.05, 0.1, 0.25, 0.5], [".05", ".1", ".25", ".5"])
            axis.xaxis.set_minor_locator(plt.NullLocator())
            axis.set_yticks([0, 0.5, 1])
        handles, labels = axes[0][0].get_legend_handles_labels()
        ways = plt.matplotlib.lines.Line2D([], [], marker="o", ls="", mfc="white", mec="#D55E00", ms=7)
        order = [4, 3, 2, 1, 0]
        drawn.legend(
            [*(handles[i] for i in order), ways],
            [*(labels[i] for i in order), "1 or 2 iterations\nat every step"],
            loc="upper center",
            ncol=6,
            bbox_to_anchor=(0.5, 1.0),
            columnspacing=1.2,
            handlelength=2.2,
        )
        drawn.supxlabel("work, as a share of full projection's", fontsize=8)
        drawn.supylabel("distance to full projection (1: one projection at the end)", fontsize=8)
        drawn.tight_layout(rect=(0, 0, 1, 0.945), h_pad=0.5, w_pad=0.4)
        drawn.savefig(HERE / "images" / "online.png", dpi=180)


def rounded(value: Any) -> Any:
    """Return numbers with four digits, all the way down."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def publish(
    cells: Cells, names: Sequence[str], called: Sequence[str], shares: Sequence[float], write: bool = True
) -> None:
    """Print the page; write it, its numbers and the figure if asked."""
    systems = {name: system_of(cells, name, shares) for name in names}
    found = {"systems": systems, "medians": medians(systems, shares), "calls": calls_of(cells, called)}
    found["minutes"] = sum(cell["seconds"] for cell in cells.values()) / 60
    text = page(found, shares)
    print(text)
    print(f"{found['minutes']:.1f} processor minutes")
    if write:
        (HERE / "results" / "online.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
        (HERE / "results" / "online.md").write_text(text)
        draw(systems, shares)
