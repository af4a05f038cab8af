"""The cost-accuracy frontier: a metric against the budget, and what the paper reports beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.evaluation.report.formats import budget_symbol, domain_label, in_iterations
from trimtab.evaluation.studies.paper_values import reported, reported_beside
from trimtab.schedules.style import COLUMN, PAGE, label_of, look_of

__all__ = ["frontier"]

Summary = Mapping[str, Any]


def frontier(plt: Any, summary: Summary, metric: str, label: str, names: Sequence[str]) -> Any:
    """A metric against the budget for these domains, one line a schedule, with standard error bands.

    What the paper reports at its one budget stands beside it, where that is the whole of a domain's settings.
    """
    domains = {name: summary["domains"][name] for name in names}
    across = min(3, len(domains))
    down = -(-len(domains) // across)
    wide, tall = (PAGE * across / 3, 2.0) if across > 1 else (1.2 * COLUMN, 2.7)  # of all axes, of one line of them
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
        axis.set_xlabel(f"budget, {budget_symbol(summary)}" if in_iterations(summary) else "budget B/T")
    for line in axes:
        line[0].set_ylabel(label)
        line[0].set_xticks([0, 0.25, 0.5, 0.75, 1])
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
    """The paper's own numbers at its table's budget, as hollow diamonds in the colour of the schedule.

    Where they are far above ours they are told in words: drawn, they would press every curve flat.
    """
    said = reported_beside("table1", name, summary["config"])
    if not said or metric not in said or "adaptive:paper" not in summary["domains"][name]["schedules"]:
        return
    parts = {key: said[metric][part] for part, key in (("periodic", "periodic"), ("adaptive", "adaptive:paper"))}
    if max(mean for mean, _ in parts.values()) > 1.5 * axis.get_ylim()[1]:
        words = "in the paper\n" + "\n".join(
            f"{_IN_PAPER[key].split()[0]} {mean:g}" for key, (mean, _) in parts.items()
        )
        axis.text(0.97, 0.95, words, transform=axis.transAxes, ha="right", va="top", fontsize=6.5, color="#444444")
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
