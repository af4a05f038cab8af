"""docs/reliability.md, the part that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- torture -->\n", "<!-- end torture -->\n"


def write_page(results: Mapping[str, Any], page: Path) -> None:
    """Put the results between the markers of the page."""
    head, rest = page.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    page.write_text(f"{head}{BEGIN}{table(results)}\n{END}{tail}", encoding="utf-8")


def table(results: Mapping[str, Any]) -> str:
    """What was done, and what came of it; a part that was not run has no line."""
    lines = ["| attack | how much | what came of it |", "|---|---|---|"]
    for name, words in (
        ("inputs", _inputs),
        ("mutations", _mutations),
        ("kills", _kills),
        ("power", _power),
        ("projections", _projections),
        ("memory", _memory),
        ("nodes", _nodes),
    ):
        if name in results:
            lines.append("| " + " | ".join(words(results[name])) + " |")
    machines = sorted({f"{found['machine']}, torch {found['torch']}" for found in results.values()})
    took = sum(found["took"] for found in results.values())
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}, in {took / 60:.0f} minutes by the clock."])


def _inputs(found: Mapping[str, Any]) -> tuple[str, str, str]:
    clear = found["clear"] / found["inputs"]
    return (
        "bad arguments and answers for public functions",
        f"{found['inputs']:,} inputs, {found['targets']} targets",
        f"{clear:.2%} clear errors, {found['unclear']} unclear, {found['accepted']} accepted in silence, "
        f"{found['crashes']} crashes",
    )


def _mutations(found: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        "damaged and forged files",
        f"{found['files']:,} files, {found['formats']} formats",
        f"{found['clear']:,} refused clearly, {found['said the same']} that still said the same, "
        f"{found['another valid file']} that were another valid file, {found['unclear']} unclear, "
        f"{found['accepted']} accepted in silence, {found['crashes']} crashes",
    )


def _kills(found: Mapping[str, Any]) -> tuple[str, str, str]:
    phases = ", ".join(f"{phase} {number}" for phase, number in found["phases"].items())
    return (
        "`kill -9`, then `--resume`",
        f"{found['kills']} kills spread over a run, {found['while working']} before its end ({phases})",
        f"{found['not resumed']} could not go on; of {found['files compared']} files each (rows, prices, traces, "
        f"summary, tables, page data) {found['differing files']} differ from an undisturbed run",
    )


def _power(found: Mapping[str, Any]) -> tuple[str, str, str]:
    damage = ", ".join(f"{kind} {number}" for kind, number in found["damage"].items())
    return (
        "power failures: a kill, then damage",
        f"{found['failures']} failures ({damage})",
        f"{found['not resumed']} could not go on, {found['differing files']} files differ; {found['files set aside']} "
        "damaged files were set aside and made again",
    )


def _projections(found: Mapping[str, Any]) -> tuple[str, str, str]:
    hangs = found["hanging"]
    name = "runs whose failures were counted wrongly"
    return (
        "projections that fail, raise, hang or answer NaN, every policy",
        f"{found['runs']} runs, {found['share of projections that go wrong']:.0%} of projections; {hangs['runs']} more "
        f"in which one call of ten never returns, with a `TimeLimit` of {hangs['limit in seconds']} s",
        f"{found['samples lost']} samples lost, {found[name]} runs with failures "
        "counted wrongly; what is not reported as a failure stops the run with an error",
    )


def _memory(found: Mapping[str, Any]) -> tuple[str, str, str]:
    calls, many = found["MB after each tenth of the calls"], found["MB after each run of so many samples"]
    held = found["MB after each such run, free memory given back"]
    return (
        "memory",
        f"{found['calls']:,} calls of one corrector; ten runs of {found['samples']:,} samples",
        f"{calls[0]:.0f} MB after the first tenth of the calls, {calls[-1]:.0f} MB after the last; {held[0]:.0f} MB "
        f"held after the first run, {held[-1]:.0f} MB after the tenth, {min(held):.0f} to {max(held):.0f} MB in "
        f"between; with what the allocator keeps for later {many[0]:.0f} and {many[-1]:.0f} MB",
    )


def _nodes(found: Mapping[str, Any]) -> tuple[str, str, str]:
    undisturbed, lost = found["seconds undisturbed"], found["seconds with a node lost"]
    unreachable = found["an unreachable cluster"].values()
    seconds, in_all = (max(case[name] for case in unreachable) for name in ("seconds", "with the process's start"))
    usual = sorted(undisturbed)[len(undisturbed) // 2]
    longer = sorted(seconds - usual for seconds in lost) or [0.0]
    refused = "refused" if "other code" in found["a node with other code"] else "NOT refused"
    return (
        f"a Ray cluster of {found['nodes']} nodes that loses one",
        f"{found['studies that lost one']} studies, each loses a node by `kill -9` after 2 to 11 of 34 tasks",
        f"{found['not resumed']} failed, {found['differing files']} with other rows, prices or traces; "
        f"{usual:.0f} s undisturbed, {longer[len(longer) // 2]:+.0f} s with a node lost (median; from {longer[0]:+.0f} "
        f"to {longer[-1]:+.0f} s); a node with other code: {refused}; an unreachable cluster, or something else at its "
        f"address: refused after at most {seconds:.0f} s ({in_all:.0f} s with the start of Python)",
    )
