"""Final states on a network, drawn for every schedule that was kept."""

from __future__ import annotations

import io

import torch

from trimtab.evaluation.report.figures import networks
from trimtab.evaluation.studies.config import preset
from trimtab.evaluation.studies.traces import Trace
from trimtab.schedules.style import figure_style

GRAPH = {"places": [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]], "edges": [[0, 1], [1, 2], [2, 0]]}


def trace(loads):
    """One kept rollout of five steps whose final state loads the three edges so."""
    path = torch.tensor([[[i + 1.0, load]] for i, load in enumerate(loads)], dtype=torch.float64)
    steps = torch.zeros(5, 1, dtype=torch.float64)
    return Trace(torch.tensor([0]), steps, steps > 0, torch.tensor([True]), steps, path)


def drawn(traces):
    with figure_style() as plt:
        file = io.BytesIO()
        networks(plt, traces, GRAPH, preset("quick")).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue().decode()


def test_each_schedule_that_was_kept_has_its_picture_and_its_distance():
    reference = trace([0.1, 0.5, 1.0])
    svg = drawn({("terminal", 0.0): trace([0.1, 0.75, 1.0]), ("stepwise", 1.0): reference})
    assert "25.0% off at most" in svg
    assert "the reference" in svg
    assert "periodic" not in svg
    more = drawn({("terminal", 0.0): reference, ("periodic", 0.25): reference, ("stepwise", 1.0): reference})
    assert "periodic" in more
    assert "0.0% off at most" in more


def test_an_edge_is_coloured_by_its_load():
    same, other = (drawn({("stepwise", 1.0): trace(loads)}) for loads in ([0.1, 0.1, 0.1], [0.1, 0.5, 1.0]))
    assert "#440154" in other.lower()  # the colour of a full edge
    assert same.lower().count("#440154") < other.lower().count("#440154")
