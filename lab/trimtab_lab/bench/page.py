"""The page of the benchmark: one HTML file that needs nothing else, with a figure and a table per system, and ranks."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trimtab._version import __version__
from trimtab_lab.bench.rules import RULES
from trimtab_lab.bench.table import OVER, Result, eligible, ranks, results

__all__ = ["page_html", "rank_lines"]

_LINES = {  # rules whose runs are joined: colour and marker, for colour-blind readers
    "even": ("#E69F00", "o"),
    "last window": ("#56B4E9", "v"),
    "first window": ("#999999", "^"),
    "best window": ("#8C564B", "s"),
    "the paper's rule": ("#0072B2", "D"),
    "dp": ("#D55E00", "P"),
    "DDAT": ("#999933", "h"),
    "the line": ("#009E73", "X"),
    "the line, with quality": ("#CC79A7", "*"),
}
_RANK_HEAD = ("rule", "place", "95%", "wins against even", "systems", "first in")
_WORK = (
    "Work is iterations of the solver, projections if it counts none, or gradients and energies, as a share of full "
    "projection at every step. Lower is better everywhere."
)
_PLACES = (
    "On each sample the rules are ranked by its quality, from 0 (best) to 1; samples that end alike share a place. A "
    f"rule counts where it costs at most {OVER:.0%} of the budget, with the dearest of its runs that does. Intervals "
    "resample systems and samples. A place is relative to the rules that count on the same systems, so mind how many "
    "those are; wins against even spacing, sample by sample, can be compared anywhere."
)
_STYLE = """
:root { --paper: #f7f7f4; --card: #fff; --ink: #16202a; --soft: #55616c; --line: #e1e3e0; --wash: #eef1f2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px clamp(16px, 3vw, 36px) 64px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 2rem; line-height: 1.15; margin: 0 0 8px; }
h2 { font-size: 1.15rem; margin: 0 0 4px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 18px 20px;
  margin: 18px 0; overflow-x: auto; }
p { color: var(--soft); margin: 0 0 10px; max-width: 100ch; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .86rem; margin-top: 8px; }
th, td { text-align: right; padding: 3px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; }
tr.best td { background: var(--wash); }
"""


def page_html(cells: Sequence[Mapping[str, Any]], about: Mapping[str, str], budgets: Sequence[float]) -> str:
    """Return the page of all cells.

    Args:
        cells: What the cells' files hold.
        about: A sentence on each system.
        budgets: Shares of full projection's work at which rules are ranked.
    """
    found = results(cells)
    parts = [_ranks_section(found, budgets)]
    for name in dict.fromkeys(result.system for result in found):
        measure = next(cell["key"]["measure"] for cell in cells if cell["key"]["system"] == name)
        parts.append(_system_section(name, about.get(name, ""), measure, [r for r in found if r.system == name]))
    parts += [_left_out(cells), _sources()]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Rules of correction at equal work</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Rules of correction at equal work</h1><p>trimtab {escape(__version__)}. {_WORK}</p>{''.join(parts)}"
        "</body></html>\n"
    )


def rank_lines(found: Sequence[Result], budgets: Sequence[float], command: str = "trimtab bench") -> list[str]:
    """Return the tables of ranks and of qualities as Markdown lines."""
    lines = ["# Rules of correction at equal work", "", f"Printed by `{command}`. {_WORK} {_PLACES}"]
    for budget in budgets:
        lines += ["", f"## At {budget:.0%} of the work of full projection", ""]
        lines += _markdown(_RANK_HEAD, _rank_rows(found, budget))
        chosen = eligible(found, budget)
        ends = {one.system: one for one in found if one.rule == "full"}
        systems = list(dict.fromkeys(one.system for one in found))
        rows = [["full projection", *(_numbers(ends.get(name)) for name in systems)]]
        for rule in dict.fromkeys(rank.rule for rank in ranks(found, budget)):
            rows.append([rule, *(_numbers(chosen.get(name, {}).get(rule)) for name in systems)])
        lines += [
            "",
            "Quality of final samples, mean and median (empty: not run, not applicable, or over the budget):",
            "",
            *_markdown(["rule", *systems], rows),
        ]
    return lines


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _numbers(result: Result | None) -> str:
    return "" if result is None else f"{result.mean.mean:.3g}, {result.median:.3g}"


def _rank_rows(found: Sequence[Result], budget: float) -> list[list[str]]:
    return [
        [r.rule, f"{r.place:.2f}", f"{r.low:.2f} to {r.high:.2f}", f"{r.wins:.0%}", str(r.systems), str(r.first)]
        for r in ranks(found, budget)
    ]


def _ranks_section(found: Sequence[Result], budgets: Sequence[float]) -> str:
    tables = []
    for budget in budgets:
        rows = _rank_rows(found, budget)
        tables.append(f"<h2>At {budget:.0%} of full projection's work</h2>")
        tables.append(_table(_RANK_HEAD, rows, {0} if rows else set()))
    return f"<section><h2>Ranks</h2><p>{escape(_PLACES)}</p>{''.join(tables)}</section>"


def _system_section(name: str, about: str, measure: str, found: Sequence[Result]) -> str:
    ordered = sorted(found, key=lambda result: (result.work, result.rule))
    rows = [
        [
            result.rule + ("" if result.budget is None else f" · {result.budget:.0%}"),
            f"{result.work:.1%}",
            f"{result.units:.4g}",
            f"{result.calls:.0f}",
            f"{1000 * result.seconds:.3g}",
            f"{result.median:.4g}",
            _interval(result),
            f"{float(result.distance.median()):.3g}",
            f"{result.feasible:.0%}",
        ]
        for result in ordered
    ]
    head = ["rule", "work", "units", "calls", "ms", "median", "mean (95%)", "distance", "feasible"]
    full = next((result for result in found if result.rule == "full"), None)
    beside = ""
    if full is not None and full.beside > 0:
        beside = f" A full projection takes {full.seconds / full.beside:.2g} times as long as the model."
    best = {i for i, result in enumerate(ordered) if result.median <= min(one.median for one in ordered)}
    words = f"{about}. Judged by: {measure}." if about else f"Judged by: {measure}."
    words += f"{beside} Units, milliseconds and distance to full projection are per sample, calls per batch."
    shown = f"{_figure(found, measure)}{_table(head, rows, best)}"
    return f"<section><h2>{escape(name)}</h2><p>{escape(words)}</p>{shown}</section>"


def _interval(result: Result) -> str:
    mean = result.mean
    if math.isnan(mean.low):
        return f"{mean.mean:.4g} (a few samples decide)"
    return f"{mean.mean:.4g} ({mean.low:.4g} to {mean.high:.4g})"


def _figure(found: Sequence[Result], measure: str) -> str:
    """Return the drawing of quality against work: medians, or means where all medians are alike."""
    from trimtab_lab.report.style import figure_style  # which needs matplotlib

    alike = len({result.median for result in found}) == 1
    shown = {id(result): result.mean.mean if alike else result.median for result in found}
    with figure_style() as plt:
        figure, axis = plt.subplots(1, 1, figsize=(7.0, 3.2), layout="constrained")
        for rule, (colour, marker) in _LINES.items():
            runs = sorted((r for r in found if r.rule == rule), key=lambda r: r.work)
            axis.plot([r.work for r in runs], [shown[id(r)] for r in runs], color=colour, marker=marker, label=rule)
        for result in found:
            if result.rule not in _LINES:
                axis.plot(result.work, shown[id(result)], ".", color="#333333")
                axis.annotate(
                    result.rule, (result.work, shown[id(result)]), xytext=(3, 3), textcoords="offset points", fontsize=6
                )
        values = list(shown.values())
        if min(values) > 0 and max(values) > 20 * min(values):
            axis.set_yscale("log")
        axis.set(
            xscale="log",
            xlabel="work, a share of full projection's",
            ylabel=f"{'mean' if alike else 'median'}: {measure}",
        )
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], best: set[int]) -> str:
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    marks = ["", *(' class="best"' if i in best else "" for i in range(len(rows)))]
    return f"<table>{''.join(f'<tr{mark}>{line}</tr>' for mark, line in zip(marks, lines, strict=True))}</table>"


def _left_out(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return what was left out and why, one line per system and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if "skipped" in cell:
            reasons.setdefault((cell["key"]["system"], cell["skipped"]), []).append(cell["key"]["rule"])
    if not reasons:
        return ""
    rows = [[system, ", ".join(dict.fromkeys(rules)), why] for (system, why), rules in reasons.items()]
    return f"<section><h2>Left out</h2>{_table(['system', 'rules', 'why'], rows, set())}</section>"


def _sources() -> str:
    rows = [[rule.name, rule.source] for rule in RULES.values() if rule.source]
    return f"<section><h2>Where constants are from</h2>{_table(['rule', 'source'], rows, set())}</section>"
