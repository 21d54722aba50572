"""A landscape from numbers instead of a model, with its optimum known."""

import numpy as np

from experiments.landscape import all_harnesses
from experiments.landscape_file import Landscape


def made_landscape(
    templates: int = 2,
    pool: int = 4,
    k: int = 2,
    items: int = 6,
    *,
    seed: int = 0,
    noise: float = 0.3,
) -> Landscape:
    """Template and exemplars add up, the first place counts double, items vary."""
    rng = np.random.default_rng(seed)
    template, shots = all_harnesses(templates, pool, k)
    by_template, by_shot = rng.normal(size=templates), rng.normal(size=pool)
    weight = np.ones(k)
    weight[0] = 2.0
    loss = 5 + by_template[template] + by_shot[shots] @ weight
    loss = loss[:, None] + rng.normal(size=items)
    loss = loss + noise * rng.normal(size=loss.shape)
    header = {
        "config": {"task": "made", "model": "none"},
        "identity": {"model_digest": "0" * 64},
        "slots": {
            "template": {"kind": "categorical", "n": templates, "k": 1},
            "exemplars": {"kind": "ranking", "n": pool, "k": k},
        },
        "templates": [f"t{i}" for i in range(templates)],
        "exemplars": [{"uid": f"e{i}", "kind": "right"} for i in range(pool)],
        "items": [f"i{i}" for i in range(items)],
    }
    return Landscape(
        template,
        shots,
        loss.astype(np.float32),
        loss < 4,
        np.ones(items, np.int32),
        np.ones(len(template), np.int32),
        header,
    )
