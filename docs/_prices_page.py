"""The tables and the figures of docs/prices.md, from what docs/make_prices.py measured."""

from __future__ import annotations

from typing import Any

import torch

from _page import HERE
from trimtab.schedules.style import look_of

__all__ = ["BUDGETS", "COUNTS", "LABEL", "METHODS", "figures", "tables"]

METHODS = ("paper", "on-policy", "planned", "dp")
BUDGETS = tuple(i / 20 for i in range(1, 20))
COUNTS = (4, 8, 16, 32, 64, 128, 256)
LABEL = {"periodic": "periodic", "paper": "paper's rule", "on-policy": "on-policy", "planned": "planned", "dp": "dp"}


def tables(results: dict[str, Any]) -> str:
    """The Markdown between the markers of docs/prices.md."""
    at = BUDGETS.index(0.25)
    lines = [
        f"NEPE at B/T = 0.25, {results['seeds']} evaluation seeds from {results['first_seed']:,} on, 64 calibration",
        "rollouts; in brackets: gap closed.",
        "",
        "| domain | kappa | periodic | paper's rule | on-policy | planned | dp | hindsight |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        cells = [f"{row['nepe']['periodic'][at]['mean']:.3f}"]
        for method in METHODS:
            cells.append(f"{row['nepe'][method][at]['mean']:.3f} ({row['gap_closed'][method]:.0%})")
        cells.append(f"{row['hindsight']['mean']:.3f}")
        lines.append(f"| {row['domain']} | {row['kappa']:g} | " + " | ".join(cells) + " |")
    compared = len(results["rows"]) * len(BUDGETS)
    lines += [
        "",
        f"dp against each rival at {compared} points (domains x kappas x {len(BUDGETS)} budgets), by the paired",
        f"difference. Between equals, chance alone would put about {0.025 * compared:.0f} beyond 2 SE on either side.",
        "",
        "| rival | dp lower by > 2 SE | within 2 SE | dp higher by > 2 SE | by > 3 SE | worst such loss |",
        "|---|---|---|---|---|---|",
    ]
    for rival in ("periodic", "paper", "on-policy", "planned"):
        points = [point for row in results["rows"] for point in row["minus"][rival]]
        low = sum(p["mean"] < -2 * p["se"] for p in points)
        high = [p for p in points if p["mean"] > 2 * p["se"]]
        very = sum(p["mean"] > 3 * p["se"] for p in points)
        worst = max((p["mean"] for p in high), default=0.0)
        lines.append(
            f"| {LABEL[rival]} | {low} | {len(points) - low - len(high)} | {len(high)} | {very} | {worst:.4f} |"
        )
    lines += ["", "dp at B/T = 0.25 from so many calibration rollouts:", ""]
    lines += ["| domain | kappa | periodic | " + " | ".join(map(str, COUNTS)) + " |", "|---" * (3 + len(COUNTS)) + "|"]
    for row in results["sweep"]:
        cells = " | ".join(f"{v['mean']:.3f}" for v in row["dp"])
        lines.append(f"| {row['domain']} | {row['kappa']:g} | {row['periodic']['mean']:.3f} | {cells} |")
    return "\n".join([*lines, *_reach_table(results), *_objective_table(results), *_cost_table(results)])


def _reach_table(results: dict[str, Any]) -> list[str]:
    """What is luck."""
    lines = [
        "",
        "Of the gap between periodic and hindsight in path error at B/T = 0.25: what dp closes, the most that any",
        "schedule that does not know the noise to come could, and what look-ahead and the learned value add to dp.",
        "",
        "| domain | kappa | dp closes | no online schedule more than | look-ahead adds | value adds |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["reach"]:
        most = f"{row['closed']['limit']['mean']:.0%} (dp is {_share(row['minus dp']['limit'])} short of it)"
        added = _share(row["minus dp"]["look-ahead"])
        value = _share(row["minus dp"]["value"]) if row["value departs"] else "hands back the table"
        cells = f"{row['closed']['dp']['mean']:.0%} | {most} | {added} | {value}"
        lines.append(f"| {row['domain']} | {row['kappa']:g} | {cells} |")
    lines += [
        "",
        "The variance of a sample's next defect that its present one leaves unexplained, at kappa = 0.3, and that the",
        "loop's whole record leaves (also time since the last correction, last and recent defects, last residual):",
        "",
        "| domain | by the present defect | by the record |",
        "|---|---|---|",
    ]
    lines += [f"| {row['domain']} | {row['defect']:.1%} | {row['record']:.1%} |" for row in results["history"]]
    return lines


def _objective_table(results: dict[str, Any]) -> list[str]:
    """Prices made for another objective."""
    lines = [
        "",
        "dp priced for another objective, measured in it, at B/T = 0.25 and kappa = 0.3:",
        "",
        "| domain | objective | periodic | dp for path error | dp for the objective | minus dp for path error |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["objectives"]:
        cells = " | ".join(f"{row[m]['mean']:.4f}" for m in ("periodic", "dp", "found"))
        change = f"{row['minus dp']['mean']:+.4f} ± {row['minus dp']['se']:.4f}"
        lines.append(f"| {row['domain']} | {row['objective']} | {cells} | {change} |")
    return lines


def _cost_table(results: dict[str, Any]) -> list[str]:
    """What calibration takes."""
    lines = [
        "",
        "Calibration for all budgets with 64 rollouts of T = 250 steps, every batch counted, and processor seconds",
        "beside the sampling:",
        "",
        "| domain | method | batches | seconds beside |",
        "|---|---|---|---|",
    ]
    for row in results["cost"]:
        lines.append(f"| {row['domain']} | {row['method']} | {row['batches']} | {row['beside']:.1f} |")
    return lines


def _share(summary: dict[str, float]) -> str:
    return f"{100 * summary['mean']:+.1f} ± {100 * summary['se']:.1f}%"


def figures(results: dict[str, Any]) -> None:
    """docs/images/prices.png and calibration.png."""
    import matplotlib.pyplot as plt

    looks = {method: look_of(method) for method in ("periodic", "planned")}
    looks |= {method: look_of(f"adaptive:{method}") for method in ("paper", "on-policy", "dp")}
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    rows = {(row["domain"], row["kappa"]): row for row in results["rows"]}
    names = list(dict.fromkeys(row["domain"] for row in results["rows"]))
    kappas = [k for k in (0.0, 0.3, 1.0) if all((name, k) in rows for name in names)]
    figure, axes = plt.subplots(
        len(kappas), len(names), figsize=(2.1 * len(names), 1.9 * len(kappas)), sharex=True, squeeze=False
    )
    for i, kappa in enumerate(kappas):
        for j, name in enumerate(names):
            ax, row = axes[i][j], rows[name, kappa]
            for method, look in looks.items():
                mean = torch.tensor([v["mean"] for v in row["nepe"][method]])
                se = torch.tensor([v["se"] for v in row["nepe"][method]])
                ax.fill_between(BUDGETS, mean - se, mean + se, color=look.colour, alpha=0.2, lw=0)
                style = {"color": look.colour, "ls": look.dashes, "lw": 1.8 if method == "dp" else 1.2}
                ax.plot(BUDGETS, mean, label=LABEL[method], **style)
            ax.plot([0.25], [row["hindsight"]["mean"]], "*", color=look_of("hindsight").colour, ms=7, label="hindsight")
            ax.set_ylim(0, 1)
            if i == 0:
                ax.set_title(name, fontsize=10)
            if j == 0:
                ax.set_ylabel(f"kappa = {kappa:g}\nNEPE")
            if i == len(kappas) - 1:
                ax.set_xlabel("budget B/T")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=6, frameon=False, bbox_to_anchor=(0.5, 1.04))
    figure.tight_layout()
    figure.savefig(HERE / "images" / "prices.png", dpi=150, bbox_inches="tight")
    plt.close(figure)

    figure, ax = plt.subplots(figsize=(4.6, 3.0))
    for row, colour in zip(results["sweep"], ("#0072b2", "#d55e00", "#009e73"), strict=False):
        label = f"{row['domain']}, kappa {row['kappa']:g}"
        means, ses = [v["mean"] for v in row["dp"]], [v["se"] for v in row["dp"]]
        ax.errorbar(COUNTS, means, ses, color=colour, marker="o", ms=3, lw=1.4, label=label)
        ax.axhline(row["periodic"]["mean"], color=colour, ls=":", lw=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(COUNTS, [str(c) for c in COUNTS])
    ax.set_xlabel("calibration rollouts")
    ax.set_ylabel("NEPE at B/T = 0.25")
    ax.set_ylim(0)
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    ax.legend(frameon=False, fontsize=8, title="dp (dotted: periodic)", title_fontsize=8, **place)
    figure.savefig(HERE / "images" / "calibration.png", dpi=150, bbox_inches="tight")
    plt.close(figure)
