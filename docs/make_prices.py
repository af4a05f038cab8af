"""Measure every price on every domain and write the tables and figures of docs/prices.md.

    python docs/make_prices.py                     everything, about twenty minutes on two cores
    python docs/make_prices.py --quick             a small part of it, for a look
    python docs/make_prices.py --first-seed 0      the same on other evaluation seeds; nothing is written

It is all about path error in the paper's accounting, with a closing projection apart from the budget; final samples at
equal total cost are docs/make_quality.py's. Prices are calibrated on seeds from 1,000,000 on and evaluated on 64 seeds
from 130,000 on, which nothing was chosen by.
Results go to docs/prices.json, from which the figures and the tables between the markers of docs/prices.md are made.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import trimtab as tt
from trimtab.core import metrics
from trimtab.core.moment import last_corrections
from trimtab.domains import SYNTHETIC
from trimtab.experimental.learn_value import calibrate_value
from trimtab.experimental.lookahead import LookAhead
from trimtab.limits.hindsight import hindsight
from trimtab.limits.online_bound import online_limit
from trimtab.prices.methods import cost_to_go
from trimtab.schedules.style import look_of

HERE = Path(__file__).parent
METHODS = ("paper", "on-policy", "planned", "dp")
KAPPAS = (0.0, 0.1, 0.3, 0.6, 1.0)
BUDGETS = tuple(i / 20 for i in range(1, 20))
COUNTS = (4, 8, 16, 32, 64, 128, 256)
FIRST_SEED = 130_000
Job = tuple[str, float, range]
rollout = partial(tt.rollout, closing="free", measure_defects=True)  # as the paper counts
LABEL = {"periodic": "periodic", "paper": "paper's rule", "on-policy": "on-policy", "planned": "planned", "dp": "dp"}


def calibrated(domain: tt.domains.Domain, method: str, count: int = 64) -> Any:
    """A price of a domain, from `count` calibration rollouts."""
    seeds = range(1_000_000, 1_000_000 + count)
    problem = domain.problem(seeds)
    if method == "value":
        return calibrate_value(lambda s: rollout(problem.sampler, problem.constraint, s, seeds))
    return tt.calibrate(problem, method=method, objective="path", closing="free", check=False)


class Evaluation:
    """All budgets of a domain on the same evaluation seeds, as one batch."""

    def __init__(self, domain: tt.domains.Domain, seeds: range, budgets: tuple[float, ...]) -> None:
        """Every seed at every budget."""
        self.n, self.budgets = len(seeds), budgets
        one = domain.problem(seeds)
        self.seeds = torch.tensor(seeds).repeat(len(budgets))
        self.problem = domain.problem(self.seeds)
        T = self.problem.sampler.n_steps
        counts = [tt.core.budget.corrections(b, T) for b in budgets]
        self.counts = torch.tensor(counts).repeat_interleave(self.n)
        ends = (tt.Stepwise(), tt.Terminal())
        self.ends = [metrics.path_error(rollout(one.sampler, one.constraint, s, seeds)) for s in ends]

    def nepe(self, schedule: tt.Schedule) -> torch.Tensor:
        """(budgets, n)."""
        run = rollout(self.problem.sampler, self.problem.constraint, schedule, self.seeds)
        assert torch.equal(run.spent, schedule.budget)  # type: ignore[attr-defined]
        path = metrics.path_error(run).reshape(len(self.budgets), self.n)
        return metrics.nepe(path, *(end.expand_as(path) for end in self.ends))


def measure(job: Job) -> dict[str, Any]:
    """Every method on one domain and kappa: NEPE by budget, paired differences to dp, and hindsight at 0.25."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    evaluation = Evaluation(domain, seeds, BUDGETS)
    values = {"periodic": evaluation.nepe(tt.Periodic(evaluation.counts))}
    for method in METHODS:
        values[method] = evaluation.nepe(calibrated(domain, method).at(evaluation.counts))
    at = BUDGETS.index(0.25)
    problem = domain.problem(seeds)
    B = tt.core.budget.corrections(0.25, problem.sampler.n_steps)
    mask = hindsight(problem.sampler, problem.constraint, torch.tensor(seeds), int(B))
    limit = metrics.path_error(rollout(problem.sampler, problem.constraint, tt.schedules.Fixed(mask), seeds))
    limit = metrics.nepe(limit, *evaluation.ends)
    return {
        "domain": name,
        "kappa": kappa,
        "nepe": {m: [vars(metrics.summary(v)) for v in rows] for m, rows in values.items()},
        "minus": {
            m: [vars(metrics.summary(values["dp"][i] - v)) for i, v in enumerate(rows)] for m, rows in values.items()
        },
        "hindsight": vars(metrics.summary(limit)),
        "gap_closed": {m: metrics.gap_closed(values[m][at], values["periodic"][at], limit) for m in METHODS},
    }


def sweep(job: Job) -> dict[str, Any]:
    """The dynamic program from more and more calibration rollouts, at a quarter of the budget."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    evaluation = Evaluation(domain, seeds, (0.25,))
    curve = [evaluation.nepe(calibrated(domain, "dp", count).at(evaluation.counts))[0] for count in COUNTS]
    periodic = evaluation.nepe(tt.Periodic(evaluation.counts))[0]
    return {
        "domain": name,
        "kappa": kappa,
        "dp": [vars(metrics.summary(v)) for v in curve],
        "periodic": vars(metrics.summary(periodic)),
    }


def reach(job: Job) -> dict[str, Any]:
    """At a quarter of the budget: what is luck, and what more than the table could gain. In path error."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    problem, known = domain.problem(seeds), range(1_000_000, 1_000_064)
    T = problem.sampler.n_steps
    B = int(tt.core.budget.corrections(0.25, T))
    calibration = domain.problem(known)

    def run(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(problem.sampler, problem.constraint, schedule, seeds)

    def calibrate_on(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(calibration.sampler, calibration.constraint, schedule, known)

    cost = cost_to_go(calibrate_on, T)
    by_table = run(calibrated(domain, "dp").at(B))
    value = calibrated(domain, "value")
    ahead = LookAhead(
        problem.sampler, problem.constraint, tt.prices.Thresholds(cost.table), cost, B, horizon=10, copies=64
    )
    best = hindsight(problem.sampler, problem.constraint, torch.tensor(seeds), B)
    errors = {
        "periodic": metrics.path_error(run(tt.Periodic(B))),
        "dp": metrics.path_error(by_table),
        "value": metrics.path_error(run(value.at(B))),
        "look-ahead": metrics.path_error(run(ahead)),
        "limit": online_limit(
            problem.sampler, problem.constraint, torch.tensor(seeds), by_table.projected, cost, copies=64
        ),
        "hindsight": metrics.path_error(run(tt.schedules.Fixed(best))),
    }
    gap = float((errors["periodic"] - errors["hindsight"]).mean())
    return {
        "domain": name,
        "kappa": kappa,
        "closed": {m: vars(metrics.summary((errors["periodic"] - v) / gap)) for m, v in errors.items()},
        "minus dp": {m: vars(metrics.summary((errors["dp"] - v) / gap)) for m, v in errors.items()},
        "value departs": value.notes["penalty"] != "table",
        "value batches": value.notes["batches"],
    }


def history(name: str) -> dict[str, Any]:
    """How much of the next defect's variance the present one leaves open, and how much with the record of the loop."""
    torch.set_num_threads(1)
    seeds = range(1_000_000, 1_000_256)
    problem = tt.domain(name).problem(seeds)
    T = problem.sampler.n_steps
    run = rollout(problem.sampler, problem.constraint, tt.schedules.RandomTimes(torch.arange(256) * T // 512), seeds)
    defects = run.defects / run.defects.mean(dim=1, keepdim=True)
    kept = run.residuals / run.defects.mean(dim=1, keepdim=True)
    steps = torch.arange(T // 10, T - 1)
    alone = ~run.projected[steps]
    age = (steps[:, None] + 1 - last_corrections(run.projected)[steps]).double().log()
    recent = torch.stack([defects[t - T // 10 : t].mean(dim=0) for t in steps])
    present, following = defects[steps][alone], defects[steps + 1][alone]
    record = [x[alone] for x in (age, recent, kept[steps - 1], defects[steps - 1])]

    def left_open(*features: torch.Tensor) -> float:
        columns = torch.stack([torch.ones_like(present), *features], dim=1)
        fitted = columns @ torch.linalg.lstsq(columns, following[:, None]).solution
        return float((following - fitted[:, 0]).var() / following.var())

    shape = (present, present**2, present.sqrt())
    both = [*shape, *record, *(present * x for x in record)]
    return {"domain": name, "defect": left_open(*shape), "record": left_open(*both)}


def objectives(job: Job) -> list[dict[str, Any]]:
    """State error and endpoint distance at a quarter of the budget, under prices made for them and for path error."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    problem, known = domain.problem(seeds), range(1_000_000, 1_000_064)
    calibration = domain.problem(known)

    def run(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(problem.sampler, problem.constraint, schedule, seeds, keep_states=True)

    stepwise = run(tt.Stepwise())
    rivals = {"periodic": run(tt.Periodic(0.25)), "dp": run(calibrated(domain, "dp").at(0.25))}
    rows = []
    for objective, error in (("state", metrics.state_error), ("endpoint", metrics.endpoint_distance)):
        price = tt.calibrate(
            calibration, method="dp", objective=objective, distance=domain.distance, closing="free", check=False
        )
        found = error(run(price.at(0.25)), stepwise, domain.distance)
        others = {m: error(rival, stepwise, domain.distance) for m, rival in rivals.items()}
        row = {"domain": name, "objective": objective, "batches": price.notes["batches"]}
        row |= {"found": vars(metrics.summary(found))}
        row |= {m: vars(metrics.summary(v)) for m, v in others.items()}
        rows.append(row | {f"minus {m}": vars(metrics.summary(found - v)) for m, v in others.items()})
    return rows


def calibration_cost(name: str) -> list[dict[str, Any]]:
    """What calibration takes with 64 rollouts of 250 steps: batches, and processor seconds beside them."""
    torch.set_num_threads(1)
    domain = tt.domain(name, n_steps=250)
    seeds = range(1_000_000, 1_000_064)
    problem = domain.problem(seeds)
    rows = []
    for method in (*METHODS, "value"):
        batches: list[float] = []

        def run(schedule: tt.Schedule, batches: list[float] = batches) -> tt.Rollout:
            began = time.process_time()
            record = rollout(problem.sampler, problem.constraint, schedule, seeds)
            batches.append(time.process_time() - began)
            return record

        began = time.process_time()
        if method == "value":
            calibrate_value(run)
        else:
            tt.calibrate(run, method=method, objective="path", check=False)
        beside = time.process_time() - began - sum(batches)
        rows.append({"domain": name, "method": method, "batches": len(batches), "beside": beside})
    return rows


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


def main() -> None:
    """Run, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two domains, two kappas, few seeds; nothing is written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of evaluation")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + (16 if options.quick else 64))
    names, kappas = (("so3", "so3-impulse"), (0.0, 0.3)) if options.quick else (SYNTHETIC, KAPPAS)
    jobs = [(name, kappa, seeds) for name in names for kappa in kappas]
    swept = [("so3", 0.0, seeds), ("so3-impulse", 0.3, seeds), ("terrain-ridge", 0.3, seeds)]
    results: dict[str, Any] = {"version": tt.__version__, "first_seed": seeds[0], "seeds": len(seeds), "rows": []}
    with ProcessPoolExecutor(options.workers) as pool:
        for number, row in enumerate(pool.map(measure, jobs), 1):
            results["rows"].append(row)
            print(f"{number}/{len(jobs)} {row['domain']} kappa {row['kappa']:g}", flush=True)
        results["reach"] = list(pool.map(reach, [(name, 0.3, seeds) for name in names]))
        pairs = pool.map(objectives, [(name, 0.3, seeds) for name in ("se3", "terrain")])
        results["history"] = list(pool.map(history, names))
        results["objectives"] = [row for pair in pairs for row in pair]
        results["cost"] = [row for rows in pool.map(calibration_cost, ("so3", "terrain")) for row in rows]
        results["sweep"] = [] if options.quick else list(pool.map(sweep, swept))
    text = tables(results)
    print(text)
    if options.quick or options.first_seed != FIRST_SEED:
        return
    (HERE / "prices.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
    figures(results)
    page = HERE / "prices.md"
    head, rest = page.read_text().split("<!-- tables -->\n")
    tail = rest.split("<!-- end -->\n")[1]
    page.write_text(f"{head}<!-- tables -->\n{text}\n<!-- end -->\n{tail}")


if __name__ == "__main__":
    main()
