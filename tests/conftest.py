from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # tests run side by side; results must not depend on threads anyway


@pytest.fixture
def stable():
    """A Stable Diffusion pipeline with small models, anew for each test."""
    from diffusers_cases import stable_pipeline

    return stable_pipeline()
