"""What a run keeps of its domains: enough to draw them, and nothing that a report would have to trust."""

from __future__ import annotations

import json

import pytest
import torch

import trimtab as tt
from trimtab_lab.domains import domain
from trimtab_lab.domains.base import Domain, Graph, View
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.traces import ABOUT, about, read_about

TRIANGLE = Graph(((0.0, 0.0), (1.0, 0.0), (0.5, 1.0)), ((0, 1), (1, 2), (2, 0)))


def said(tmp_path, **changes):
    base = domain("terrain")
    view = View("Net", "loads", ("line", "share"), lambda x: x, final=True, graph=TRIANGLE)
    made = Domain("net", "a network", base.problem, base.distance, {}, view=view)
    files = RunFiles(tmp_path)
    facts = json.loads(json.dumps(about(made, tt.as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))))) | changes
    files.put(ABOUT, json.dumps({"net": facts}))
    return files


def test_a_network_is_kept_with_its_places_and_edges(tmp_path):
    graph = read_about(said(tmp_path), ["net"])["net"]["graph"]
    assert graph == {"places": [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]], "edges": [[0, 1], [1, 2], [2, 0]]}


def test_a_domain_without_one_has_none():
    made = domain("so3")
    assert about(made, made.problem([0]).constraint)["graph"] is None


def test_facts_that_are_missing_are_reported(tmp_path):
    with pytest.raises(StudyError, match="has no facts about other"):
        read_about(said(tmp_path), ["other"])


def test_the_ground_of_a_terrain_is_kept():
    made = domain("terrain")
    surface = about(made, made.problem([0]).constraint)["surface"]
    u, v = (torch.tensor(surface[axis], dtype=torch.float64) for axis in ("x", "y"))
    height = made.problem([0]).constraint.height(u[:3], v[:3])
    assert torch.allclose(height, torch.tensor([surface["z"][i][i] for i in range(3)], dtype=torch.float64), atol=1e-3)
