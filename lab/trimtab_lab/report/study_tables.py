"""The tables of a run: those of the paper with its numbers beside ours, and tables about the run itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab_lab.domains import base_of, dynamics_of
from trimtab_lab.report.formats import Cell, Table
from trimtab_lab.report.style import label_of
from trimtab_lab.studies.config import budget_name
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import reported, reported_beside

__all__ = ["agreement", "all_tables", "domain_label", "final_samples", "write_tables"]

Summary = Mapping[str, Any]
Row = list[str | int | Cell]

_LEVEL = 0.05
_DYNAMICS = {"langevin": "Langevin", "flow": "constant speed", "ramp": "ramp", "replica": "replica"}
_DYNAMICS |= {"sphere": "ramp, on a sphere"}


def write_tables(files: RunFiles, summary: Summary) -> list[Path]:
    """Write every table of a summary into `tables/`, in three formats each."""
    written = []
    for table in all_tables(summary):
        for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            written.append(files.put(f"tables/{table.name}.{ending}", text))
    return written


def all_tables(summary: Summary) -> list[Table]:
    """Return every table that a summary has the numbers for."""
    tables = agreement(summary)
    for key in _compared_keys(summary):
        ending = "" if key == "adaptive:paper" else f"-{key.replace(':', '-')}"
        tables += [fixed_budget(summary, key, f"table1{ending}"), win_rates(summary, key, f"table3{ending}")]
    tables += [*projected_diffusion(summary), *quality(summary), *final_samples(summary), *tails(summary)]
    return [*tables, diagnostics(summary)]


# ------------------------------------------------------------------ labels


def domain_label(summary: Summary, domain: str) -> str:
    """Return a domain's label in tables and figures."""
    return str(summary["domains"].get(domain, {}).get("label", domain))


def _closing_is_paid(summary: Summary) -> bool:
    return bool(summary["config"].get("closing") == "paid")


def _table_budget(summary: Summary) -> str:
    return budget_name(summary["config"]["table_budget"])


def _compared_keys(summary: Summary) -> list[str]:
    """Return the schedules that are compared with periodic on any domain."""
    return list(dict.fromkeys(key for content in summary["domains"].values() for key in content["win_rate"]))


def _sources(summary: Summary, key: str | None = None) -> dict[str, dict[str, str]]:
    """Return the domains of a run by row label and source: "here", or the dynamics if a run has several.

    Example:
        >>> _sources({"domains": {"so3": {"label": "SO(3)"}, "so3-ramp": {"label": "SO(3) ramp"}}})
        {'SO(3)': {'Langevin': 'so3', 'ramp': 'so3-ramp'}}
        >>> _sources({"domains": {"so3": {"label": "SO(3)"}, "pdm": {"label": "PDM"}}})
        {'SO(3)': {'here': 'so3'}, 'PDM': {'here': 'pdm'}}
    """
    several = len({dynamics_of(name) for name in summary["domains"]} - {None}) > 1
    groups: dict[str, dict[str, str]] = {}
    for name, content in summary["domains"].items():
        if key is not None and key not in content["schedules"]:
            continue
        dynamics = dynamics_of(name) if several else None
        label = domain_label(summary, name)
        if dynamics and base_of(name) != name:
            label = label.removesuffix(f" {dynamics}")
        groups.setdefault(label, {})[_DYNAMICS[dynamics] if dynamics else "here"] = name
    return groups


def _at_table_budget(summary: Summary, name: str) -> dict[str, str]:
    """Return the schedules of a domain, with the table's budget or, if they have only one, theirs."""
    wanted = _table_budget(summary)
    return {
        key: wanted if wanted in by_budget else next(iter(by_budget))
        for key, by_budget in summary["domains"][name]["schedules"].items()
    }


# ------------------------------------------------------------------ cells


def _pair(value: Mapping[str, Any]) -> list[float | None]:
    return [value["mean"], value["se"]]


def _value(value: Mapping[str, Any]) -> Cell:
    return Cell(value["mean"], value["se"])


def _gain(value: Mapping[str, Any]) -> Cell:
    """Return an improvement in percent, with its interval if the summary has one."""
    interval = (value["low"], value["high"]) if "low" in value else None
    return Cell(value["mean"], value["se"], "percent", interval=interval)


def _paper_gain(pair: Sequence[float | None]) -> Cell:
    return Cell(pair[0], pair[1], "percent")


# ------------------------------------------------------------------ does it agree with the paper?


def _ends(value: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the 95% interval of an improvement; None if it is not known."""
    if "low" in value:
        return None if value["low"] is None else (value["low"], value["high"])
    if value["mean"] is None or value["se"] is None:
        return None
    return value["mean"] - 2 * value["se"], value["mean"] + 2 * value["se"]


TOO_WIDE = "undecided (the paper's interval is too wide)"
FEW_DECIDE = "undecided (a few samples decide the mean here)"
NO_SIGN = "undecided (the interval here holds 0)"


def verdict(here: Mapping[str, Any], paper: Sequence[float | None]) -> str:
    """Compare an improvement with the paper's, by 95% intervals (the paper's: ± 2 standard errors).

    A number whose interval holds 0 has no sign, so that nothing agrees with it but by chance.

    Example:
        >>> verdict({"mean": 0.3, "low": 0.2, "high": 0.4}, [0.38, 0.04])
        'agrees'
        >>> verdict({"mean": 0.1, "low": 0.05, "high": 0.2}, [0.38, 0.04])
        'same sign, smaller here'
        >>> verdict({"mean": 0.6, "low": 0.5, "high": 0.7}, [-0.06, 0.34])
        "undecided (the paper's interval is too wide)"
        >>> verdict({"mean": 0.1, "low": None, "high": None}, [0.38, 0.04])
        'undecided (a few samples decide the mean here)'
    """
    ours = _ends(here)
    if paper[0] is None:
        return "undecided"
    theirs = (paper[0] - 2 * (paper[1] or 0.0), paper[0] + 2 * (paper[1] or 0.0))
    if theirs[0] <= 0 <= theirs[1]:
        return TOO_WIDE
    if ours is None:
        return FEW_DECIDE
    if ours[0] <= 0 <= ours[1]:
        return NO_SIGN
    if ours[0] <= theirs[1] and theirs[0] <= ours[1]:
        return "agrees"
    if (ours[0] > 0) != (theirs[0] > 0):
        return "opposite sign"
    return f"same sign, {'larger' if abs(here['mean']) > abs(paper[0]) else 'smaller'} here"


_VERDICTS: tuple[str, ...] = ("agrees", "same sign, larger here", "same sign, smaller here", "opposite sign")
_VERDICTS += (TOO_WIDE, NO_SIGN, FEW_DECIDE, "undecided")
_METRIC_NAMES = {"nepe": "NEPE", "endpoint": "endpoint"}


def agreement(summary: Summary) -> list[Table]:
    """Return one table of the improvements of the paper's rule: the paper's, and ours by dynamics; none without it."""
    key, budget = "adaptive:paper", _table_budget(summary)
    if not _is_in_paper(summary, key, "table1") or budget != reported()["table_budget"]:
        return []
    groups = _sources(summary, key)
    order = ("ramp", "here", "replica", "Langevin", "constant speed")
    sources = [source for source in order if any(source in group for group in groups.values())]
    if not sources:
        return []
    first = sources[0]
    others = [source for source in sources if source != first and source != "here"]
    rows: list[Row] = []
    counts: dict[str, int] = {}
    beside: dict[str, dict[str, int]] = {s: {} for s in others}
    for metric, name in _METRIC_NAMES.items():
        for label, group in groups.items():
            source = first if first in group else "here" if "here" in group else None
            paper = source and reported_beside("table1", group[source], summary["config"])
            if not source or not paper or metric not in paper:
                continue
            gains = {s: summary["domains"][d]["improvement"][key][budget][metric] for s, d in group.items()}
            judged = verdict(gains[source], paper[metric]["improvement"])
            counts[judged] = counts.get(judged, 0) + 1
            for s in (s for s in others if s in gains):
                word = verdict(gains[s], paper[metric]["improvement"])
                beside[s][word] = beside[s].get(word, 0) + 1
            cells = [_gain(gains[s]) if s in gains else Cell(None) for s in others]
            rows.append([name, label, _paper_gain(paper[metric]["improvement"]), _gain(gains[source]), judged, *cells])
    head = "here" if first == "here" else f"here, {first}"
    columns = ["Δ of", "Domain", "paper", head, "verdict", *(_OTHERS.get(source, source) for source in others)]
    notes = [
        f"Δ is 1 - mean(paper's rule) / mean(periodic) at B/T = {budget}, positive if the paper's "
        "rule is better; in brackets its 95% interval, or 'undecided' if a few samples decide the mean. The paper: ± "
        "its standard error.",
        "Verdict, by the two 95% intervals: 'undecided' if one of them holds 0, since a number without a sign agrees "
        "with others by chance alone, or if none can be given; else 'agrees' if they overlap, and 'same sign' or "
        "'opposite sign' if they do not.",
        f"{sum(counts.values())} comparisons: {_counted(counts)}.",
        *(f"The same for {source}: {_counted(found)}." for source, found in beside.items() if found),
        *_speed_note(summary, groups, key, budget),
        *_sphere_note(summary, groups, key, budget),
        *_below_note(summary, [group[s] for group in groups.values() for s in (first, "here") if s in group]),
    ]
    return [Table("agreement", "Does the paper's result come out?", columns, rows, notes)]


def _counted(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{word} {counts[word]}" for word in _VERDICTS if word in counts)


_OTHERS = {"replica": "replica, fitted to the paper's numbers", "Langevin": "Langevin, a counter-example"}
_OTHERS |= {"constant speed": "constant speed, a counter-example"}


def _speed_note(summary: Summary, groups: Mapping[str, Mapping[str, str]], key: str, budget: str) -> list[str]:
    """Return one sentence on how the speed profile decides, from the first domain with all three."""
    for label, group in groups.items():
        if {"constant speed", "ramp", "replica"} <= set(group):
            one, two, three = (
                Cell(summary["domains"][group[s]]["improvement"][key][budget]["nepe"]["mean"], kind="percent")
                for s in ("constant speed", "ramp", "replica")
            )
            return [
                "The paper leaves the update rule open, and the speed profile decides: Δ NEPE on "
                f"{label} is {one} at constant speed, {two} if speed grows with time (ramp), {three} with a profile "
                "fitted to the paper's own numbers (replica)."
            ]
    return []


def _below_note(summary: Summary, names: Sequence[str]) -> list[str]:
    """Return a sentence for each rule on the budgets at which its mean NEPE is below periodic's (figures 3 and 4)."""
    sentences = []
    for key in ("adaptive:paper", "adaptive:dp"):
        parts = []
        for name in dict.fromkeys(names):
            by_budget = summary["domains"][name]["improvement"].get(key, {})
            gains = [found["nepe"]["mean"] for at, found in by_budget.items() if at not in ("0.00", "1.00")]
            if len(gains) > 1:
                below = sum(gain is not None and gain > 0 for gain in gains)
                parts.append(f"{domain_label(summary, name)} {below} of {len(gains)}")
        if parts:
            sentences.append(
                f"Budgets at which {label_of(key)} has a lower mean NEPE than periodic: {', '.join(parts)}."
            )
    return sentences


def _sphere_note(summary: Summary, groups: Mapping[str, Mapping[str, str]], key: str, budget: str) -> list[str]:
    """Return a sentence on poses whose position is held to a sphere, if the run has any."""
    said = []
    for label, group in groups.items():
        if "ramp, on a sphere" in group:
            gains = summary["domains"][group["ramp, on a sphere"]]["improvement"][key][budget]
            said.append(f"{label} " + " and ".join(f"{_gain(gains[m])} in {n}" for m, n in _METRIC_NAMES.items()))
    if not said:
        return []
    return [
        "As in the paper, the projection of SE(3) and SE(3)-Lever leaves the translation as it is. If the position is "
        f"held to a sphere too, the rule gains: {'; '.join(said)}."
    ]


# ------------------------------------------------------------------ tables 1 and 3


def _is_in_paper(summary: Summary, key: str, table: str) -> bool:
    return key == "adaptive:paper" and any(_paper(summary, table, domain) for domain in summary["domains"])


def _paper(summary: Summary, table: str, domain: str) -> dict[str, Any] | None:
    return reported_beside(table, domain, summary["config"])


def fixed_budget(summary: Summary, key: str, name: str) -> Table:
    """Return table 1: endpoint distance and NEPE at the table's budget, periodic against one schedule."""
    budget = _table_budget(summary)
    label, at = label_of(key), f"B/T = {budget}"
    compares = _is_in_paper(summary, key, "table1") and budget == reported()["table_budget"]
    rows: list[Row] = []
    for row_label, sources in _sources(summary, key).items():
        rows += [[row_label, source, *_six(summary["domains"][name], key, budget)] for source, name in sources.items()]
        paper = _paper(summary, "table1", next(iter(sources.values()))) if compares else None
        rows += [[row_label, "paper", *_paper_six(paper)]] if paper else []
    columns = ["Domain", "Source"]
    for metric in ("endpoint", "NEPE"):
        columns += [f"periodic {metric}", f"{label} {metric}", f"Δ {metric}"]
    notes = [
        f"Mean ± standard error over seeds at {at}; bold is the lower of the two. Δ is 1 - mean({label}) / "
        "mean(periodic), positive if the schedule is better, with its 95% interval; 'undecided' if a few samples "
        "decide the mean, so that no interval can be given."
    ]
    if compares:
        notes.append(
            "The paper leaves its update rules open, so its absolute numbers are of other samplers; what can be "
            "compared is which schedule is ahead, and by how much."
        )
    return Table(name, f"Periodic and {label} correction at {at}", columns, rows, notes)


def _six(content: Mapping[str, Any], key: str, budget: str) -> list[Cell]:
    """Return periodic, schedule and improvement, for endpoint and NEPE."""
    cells = []
    for metric in ("endpoint", "nepe"):
        periodic, own = (_pair(content["schedules"][k][budget][metric]) for k in ("periodic", key))
        cells += _three_cells(periodic, own, _gain(content["improvement"][key][budget][metric]))
    return cells


def _paper_six(paper: Mapping[str, Any]) -> list[Cell]:
    cells = []
    for metric in ("endpoint", "nepe"):
        found = paper.get(metric, dict.fromkeys(("periodic", "adaptive", "improvement"), (None, None)))
        cells += _three_cells(found["periodic"], found["adaptive"], _paper_gain(found["improvement"]))
    return cells


def _three_cells(periodic: Sequence[float | None], own: Sequence[float | None], gain: Cell) -> list[Cell]:
    """Return two means, the lower one in bold, and the improvement."""
    known = periodic[0] is not None and own[0] is not None
    ahead, behind = known and own[0] < periodic[0], known and periodic[0] < own[0]  # type: ignore[operator]
    return [
        Cell(periodic[0], periodic[1], bold=behind),
        Cell(own[0], own[1], bold=ahead),
        replace(gain, bold=ahead),
    ]


def win_rates(summary: Summary, key: str, name: str) -> Table:
    """Return table 3: how often a schedule beats periodic over all pairs."""
    label, fewer = label_of(key), summary["config"].get("exceptions", {})
    compares = _is_in_paper(summary, key, "win_rates")
    budgets = summary["config"]["budgets"]
    most = sum(0 < budget < 1 for budget in budgets) / len(budgets)
    rows: list[Row] = []
    near: dict[str, list[bool]] = {}
    for row_label, sources in _sources(summary, key).items():
        for source, domain in sources.items():
            wins = summary["domains"][domain]["win_rate"][key]
            ours = {part: _pair(wins[part]) for part in ("endpoint", "pathwise")}
            ours |= {"median_improvement": wins["median_improvement"], "n": wins["pathwise"]["n"]}
            if "budgets" not in fewer.get(domain, {}):
                rows.append([row_label, source, *_four(ours), Cell(most, kind="percent")])
                told = _paper(summary, "win_rates", domain) if compares else None
                near.setdefault(source, []).extend(_near(ours, told) if told else [])
        paper = _paper(summary, "win_rates", next(iter(sources.values()))) if compares else None
        if paper:
            theirs = (reported()["budgets"] - 2) / reported()["budgets"]
            rows.append([row_label, "paper", *_four(paper), Cell(theirs, kind="percent")])
    notes = [
        f"Share of pairs (budget and seed) in which {label} is strictly below periodic, ± standard error over seeds"
        + (" (the paper's is binomial, over pairs)" if compares else "")
        + "; the median is of (periodic - schedule) / periodic in NEPE. Bold is above one half.",
        f"At budgets 0 and 1 the two coincide and a tie is no win: with the {len(budgets)} budgets of these rows "
        f"{most:.1%} is the highest rate possible.",
    ]
    if compares and len(budgets) == reported()["budgets"]:
        shares = (f"{source} {sum(found)} of {len(found)}" for source, found in near.items() if found)
        notes.append(f"Within 2 standard errors of the paper's rate: {', '.join(shares)}.")
    elif compares:
        notes.append(
            f"The paper's rates are over {reported()['budgets']} budgets, these over {len(budgets)}: they cannot be "
            "compared."
        )
    columns = ["Domain", "Source", "Endpoint win", "Pathwise win", "Median Δ NEPE", "N", "highest possible"]
    return Table(name, f"How often {label} beats periodic", columns, rows, notes)


def _near(ours: Mapping[str, Any], paper: Mapping[str, Any]) -> list[bool]:
    """Return for both win rates whether they differ from the paper's by at most 2 standard errors of the difference."""
    pairs = ((ours[part], paper[part]) for part in ("endpoint", "pathwise"))
    return [abs(a[0] - b[0]) <= 2 * math.hypot(a[1] or 0.0, b[1] or 0.0) for a, b in pairs]


def _four(numbers: Mapping[str, Any]) -> list[int | Cell]:
    cells: list[int | Cell] = []
    for part in ("endpoint", "pathwise"):
        mean, se = numbers[part]
        cells.append(Cell(mean, se, "percent", bold=mean is not None and mean > 0.5))
    return [*cells, Cell(numbers["median_improvement"], None, "percent"), int(numbers["n"])]


# ------------------------------------------------------------------ table 2 and quality


def projected_diffusion(summary: Summary) -> list[Table]:
    """Return table 2: each schedule between terminal correction and original PDM, which is stepwise."""
    if "pdm" not in summary["domains"]:
        return []
    content = summary["domains"]["pdm"]
    rows: list[Row] = []
    paper = {} if _closing_is_paid(summary) else reported()["table2"]["schedules"]
    unknown = {"mean": None, "se": None}
    for key, at in _at_table_budget(summary, "pdm").items():
        numbers = content["schedules"][key][at]
        gain = content["improvement"].get(key, {}).get(at, {}).get("nepe", unknown)
        work = _value(numbers.get("iterations", unknown))
        rows.append([label_of(key), "here", at, *_three(_pair(numbers["nepe"]), _gain(gain)), work])
        if key in paper and at in ("0.00", "1.00", reported()["table_budget"]):
            better = _paper_gain(paper[key]["improvement"])
            rows.append([label_of(key), "paper", at, *_three(paper[key]["nepe"], better), Cell(None)])
    notes = [
        "Stepwise correction is PDM as published: NEPE 0, all of the benefit, all of the cost. Terminal correction is "
        "NEPE 1. Benefit recovered is 1 - NEPE; ± is the standard error over seeds. Iterations are those of the solver "
        "for one sample, the closing projection included.",
        *_timing_or_state(summary),
    ]
    if paper:
        notes.append(
            "The paper states neither checkpoint nor map, starts or goals, so its numbers are of another problem: what "
            "can be compared is which schedule is ahead, and by how much."
        )
    title = f"Projected diffusion: what is kept of stepwise correction at B/T = {_table_budget(summary)}"
    columns = ["Schedule", "Source", "cost B/T", "NEPE", "benefit recovered", "improvement over periodic", "iterations"]
    return [Table("table2", title, columns, rows, notes)]


_FIXED_TIMES = {"first": "the first steps", "window": "the last steps", "planned": "planned steps"}


def _timing_or_state(summary: Summary) -> list[str]:
    """Return a sentence on projected diffusion: the paper's rule against fixed times, which look at no defect."""
    budget, schedules = _table_budget(summary), summary["domains"]["pdm"]["schedules"]
    if not all(budget in schedules.get(key, {}) for key in ("adaptive:paper", *_FIXED_TIMES)):
        return []
    nepe = {key: schedules[key][budget]["nepe"] for key in ("periodic", "adaptive:paper", *_FIXED_TIMES)}
    best = min(_FIXED_TIMES, key=lambda key: nepe[key]["mean"])
    apart = nepe[best]["mean"] - nepe["adaptive:paper"]["mean"]
    whole = nepe["periodic"]["mean"] - nepe["adaptive:paper"]["mean"]
    share = Cell(1 - apart / whole, kind="percent")
    return [
        f"Of what the paper's rule gains over periodic in NEPE, {share} is also gained by {_FIXED_TIMES[best]}, which "
        "are the same for all samples, whatever their state: "
        + ("timing wins here, not state." if apart < 0.2 * whole else "the rest is what looking at the state adds.")
    ]


def _three(nepe: Sequence[float | None], gain: Cell) -> list[Cell]:
    recovered = None if nepe[0] is None else 1 - nepe[0]
    return [Cell(nepe[0], nepe[1]), Cell(recovered, nepe[1]), gain]


def quality(summary: Summary) -> list[Table]:
    """Return a table of the final states by their domain's measures, and their distance to stepwise correction."""
    tables = []
    for name, content in summary["domains"].items():
        if "quality" not in content:
            continue
        judged = list(next(iter(next(iter(content["quality"].values())).values())))
        rows: list[Row] = []
        for key, at in _at_table_budget(summary, name).items():
            numbers = [content["quality"][key][at][what] for what in judged]
            numbers += [content["schedules"][key][at][metric] for metric in ("endpoint", "nepe")]
            rows.append([label_of(key), at, *map(_value, numbers)])
        columns = ["Schedule", "B/T", *(what.replace("_", " ") for what in judged)]
        note = (
            "Mean ± standard error over seeds, after the closing projection. NEPE says how near a rollout's violations "
            "are to those of stepwise correction, not whether the result is good."
        )
        title = f"{domain_label(summary, name)}: final states by the domain's own measures"
        tables.append(Table(f"quality-{name}", title, [*columns, "distance to stepwise", "NEPE"], rows, [note]))
    return tables


# ------------------------------------------------------------------ final samples and tails


def final_samples(summary: Summary) -> list[Table]:
    """Return a table of the distance of final samples to those of full projection, paired and as a distribution."""
    rows: list[Row] = []
    notes = []
    for name, content in summary["domains"].items():
        apart = content.get("distribution", {})
        label, seen, differing = domain_label(summary, name), None, []
        for key, budget in _at_table_budget(summary, name).items():
            found = apart.get(key, {}).get(budget)
            if found is None:
                continue
            numbers = [_value(content["schedules"][key][budget]["endpoint"])]
            numbers += [Cell(found[part]) for part in ("value", "floor", "p")]
            differs = found["p"] <= _LEVEL
            word = "same method, other seeds" if key == "stepwise" else "yes" if differs else "not detected"
            rows.append([label, label_of(key), budget, *numbers, word])
            differing += [label_of(key)] if differs and key != "stepwise" else []
            seen = found
        if seen is not None:
            notes.append(f"{label}: {_differing(differing)}; {_power(seen)}{_by_chance(apart)}.")
    if not rows:
        return []
    columns = ["Domain", "Schedule", "B/T", "distance to stepwise", "energy distance", "noise, 95%"]
    opening = (
        "Distance to stepwise is between final states with the same noise, mean ± standard error. Energy distance is "
        "between all final samples of a schedule and those of full projection on other seeds; noise is its 95% "
        f"quantile if nothing differed. Differs: p at most {_LEVEL:g}, which chance alone gives in one comparison of "
        "twenty."
    )
    title = "Final samples against those of full projection"
    return [Table("final-samples", title, [*columns, "p", "differs"], rows, [opening, *notes])]


def _differing(names: list[str]) -> str:
    if not names:
        return "no schedule's final samples differ detectably from those of full projection"
    return f"the final samples of {', '.join(names)} differ from those of full projection"


def _power(found: Mapping[str, Any]) -> str:
    if found["shift"] is None:
        return f"{found['n']} samples are too few to detect any shift"
    return f"with {found['n']} samples a shift of {found['shift']:.2g} of their spread would have been detected"


def _by_chance(apart: Mapping[str, Any]) -> str:
    stepwise = next(iter(apart.get("stepwise", {}).values()), None)
    if stepwise is None or stepwise["p"] > _LEVEL:
        return ""
    return "; full projection itself differs between the two sets of seeds, by chance, so these p-values say little"


def tails(summary: Summary) -> list[Table]:
    """Return a table of how much each mean depends on a few samples; none if the summary does not say."""
    rows: list[Row] = []
    for name, content in summary["domains"].items():
        for key, by_metric in content.get("tails", {}).items():
            cells: list[str | int | Cell] = [domain_label(summary, name), label_of(key)]
            for metric in _METRIC_NAMES:
                found = by_metric[metric]
                cells += [Cell(found["mean"]), Cell(found["median"]), Cell(found["top"], kind="percent")]
                cells.append(Cell(found["effective_n"]))
            rows.append(cells)
    if not rows:
        return []
    columns = ["Domain", "Schedule"]
    for metric in _METRIC_NAMES.values():
        columns += [f"{metric}, mean", f"{metric}, median", "held by top 1%", "effective n"]
    note = (
        "If the largest 1% of samples hold much of the sum, the mean is decided by a few of them, and its standard "
        "error says little. Effective n is (sum)² / sum of squares: the number of equally large samples with the same "
        "spread. An interval is given only if it is large enough."
    )
    title = f"How heavy the tails are at B/T = {_table_budget(summary)}"
    return [Table("tails", title, columns, rows, [note])]


# ------------------------------------------------------------------ about the run


def diagnostics(summary: Summary) -> Table:
    """Return C_q of each domain beside the improvement it should explain, and what was left out or failed."""
    budget, keys = _table_budget(summary), _compared_keys(summary)
    rows: list[Row] = []
    for domain, content in summary["domains"].items():
        gains = [
            _gain(content["improvement"][key][budget]["nepe"]) if key in content["improvement"] else Cell(None)
            for key in keys
        ]
        terminal = content["schedules"]["terminal"]["0.00"]
        seeds = int(terminal["achieved_budget"]["n"]) - int(terminal["nepe"]["n"])
        counts = [int(content["degenerate"]), seeds, int(content["failures"])]
        rows.append([domain_label(summary, domain), _value(content["concentration"]), *gains, *counts])
    q = next(iter(summary["domains"].values()))["concentration"]["q"]
    columns = ["Domain", f"C_{q}", *(f"Δ NEPE of {label_of(key)} at {budget}" for key in keys)]
    notes = [
        f"C_{q} is the share of an uncorrected rollout's defect in its largest {q:.0%} of steps; if all defects were "
        f"equal it would be {q}.",
        "A seed is degenerate if terminal and stepwise path errors differ by less than 1e-9; its NEPE is left out.",
        _spending(summary),
    ]
    columns += ["rollouts left out", "seeds left out", "failed projections"]
    return Table("diagnostics", f"Defect concentration C_{q}, and what was left out", columns, rows, notes)


def _spending(summary: Summary) -> str:
    """Return a note on what every task checks about its budgets."""
    closing = "included" if _closing_is_paid(summary) else "not included"
    return (
        "Every task checks that each of its rollouts spent its budget exactly, rounded to whole corrections. "
        f"The closing projection is {closing}."
    )
