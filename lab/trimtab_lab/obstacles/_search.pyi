from typing import Any

def nearest_paths(
    circles: Any,
    boxes: Any,
    proposal: Any,
    path: Any,
    violation: Any,
    rounds: Any,
    whole: tuple[int, int, int, int],
    real: tuple[float, float, float, float, float, float, float, float, float],
    /,
) -> None: ...
