from __future__ import annotations

import torch

torch.set_num_threads(1)  # tests run side by side; results must not depend on threads anyway
