"""Every harness of a small space, evaluated once with the real model.

    python -m experiments.landscape --out runs/landscape.npz

Question: what does the true loss look like over a whole space (1 of M templates x
k of N exemplars in every order), item by item? With the file, any optimiser runs
thousands of seeds a minute with the optimum known (``experiments.landscape_race``).
Expected: losses in summed nats of the gold answer, and whether greedy decoding would
write it; the same numbers as scoring one harness at a time.
Device and time: minutes for 60 harnesses x 24 short items on 2 CPU cores
(``--templates 3 --pool 5 --items 24``), and for the default, 2,208 harnesses x 64
items, on one H200.

Work is done in shards beside the output (``OUT.partial/``). A run that was stopped
continues where it was; with another configuration it is refused.
"""

import dataclasses
import hashlib
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from einops import rearrange

from components.templates import NAMED
from experiments.landscape_file import (
    Landscape,
    digest_of,
    load_landscape,
    read_arrays,
    save_landscape,
    write_arrays,
)
from metaharness.errors import InputError, RunError
from metaharness.harness.packing import Packs, pack_items
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.model.load import Model, load_model
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import Item, SplitSizes, Task


@dataclass(frozen=True)
class LandscapeConfig:
    """Which space, on which items, with which model."""

    out: Path = Path("runs/landscape.npz")
    """the landscape file"""
    task: str = "number_sequence"
    model: str = "smollm2-135m"
    template_set: str = "default"
    """a named set of templates"""
    templates: int = 4
    """how many of them, from the first on"""
    pool: int = 24
    """exemplars in the pool"""
    k: int = 2
    """exemplars in a prompt; every order counts as a harness of its own"""
    share_right: float = 0.5
    """share of right exemplars in the pool; the others are bad on purpose"""
    items: int = 64
    """items of the train split"""
    seed: int = 0
    """decides the task's items and the pool"""
    dtype: str = "float32"
    """of the weights"""
    precision: str = "highest"
    """of float32 matrix products: "highest", or "default" (faster, on GPUs TF32)"""
    data_dir: Path | None = None
    """folder with local copies of data sets"""
    shard: int = 0
    """harnesses evaluated between two saves; 0: 8 on a CPU, 128 elsewhere"""
    chunk: int = 0
    """harnesses run at once; 0: 2 on a CPU, 16 elsewhere"""
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""

    def __post_init__(self) -> None:
        if self.template_set not in NAMED:
            raise InputError(
                f"template_set: expected one of {', '.join(NAMED)}, got "
                f"{self.template_set!r}"
            )
        most = len(NAMED[self.template_set])
        for name, low, high in (
            ("templates", 1, most),
            ("k", 1, self.pool),
            ("items", 1, None),
            ("shard", 0, None),
            ("chunk", 0, None),
        ):
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                upto = "" if high is None else f" to {high}"
                raise InputError(f"{name}: expected {low}{upto}, got {value}")
        if self.precision not in ("highest", "default"):
            raise InputError(
                f"precision: expected highest or default, got {self.precision!r}"
            )


# These change where and how fast, never what.
_FREE = ("out", "shard", "chunk", "quick", "data_dir")


class Evaluated(NamedTuple):
    """Of some harnesses: float32 and bool ``[harness, item]``, int32 ``[harness]``."""

    losses: np.ndarray
    reward: np.ndarray
    tokens: np.ndarray


def build(
    config: LandscapeConfig, model: Model | None = None, task: Task | None = None
) -> tuple[Space, tuple[Item, ...]]:
    """The space of a configuration and the items that it is evaluated on."""
    if task is None:
        task = load_task(
            config.task,
            data_dir=config.data_dir,
            seed=config.seed,
            sizes=SplitSizes(config.pool, config.items, 1, 1),
        )
    if len(task.train) < config.items:
        raise InputError(
            f"items: task {task.name} has {len(task.train)} train items, asked for "
            f"{config.items}; ask for fewer"
        )
    slot = Exemplars.from_task(
        task,
        pool=config.pool,
        k=config.k,
        share_right=config.share_right,
        seed=config.seed,
    )
    templates = Templates(Templates.named(config.template_set).pool[: config.templates])
    model = model or load_model(config.model, dtype=config.dtype)
    space = build_space(model, Harness(slot, templates), [task])
    return space, task.train[: config.items]


def all_harnesses(num_templates: int, pool: int, k: int) -> tuple[np.ndarray, ...]:
    """Every harness: template int32 ``[harness]``, shots int32 ``[harness, k]``."""
    orders = np.array(list(itertools.permutations(range(pool), k)), np.int32)
    template = np.repeat(np.arange(num_templates, dtype=np.int32), len(orders))
    return template, np.tile(orders, (num_templates, 1))


def one_item_packs(space: Space, items: Sequence[Item]) -> Packs:
    """Packs of one item each, so that pack i is item i."""
    packed = pack_items(
        [[item] for item in items],
        space.harness.template.pool,
        space.renderer,
        width=1,  # grows to the longest item
    )
    # packed as tasks of one item: the task axis becomes the pack axis
    rows = jax.tree.map(
        lambda x: rearrange(x, "item template 1 time -> 1 template item time"),
        packed.rows,
    )
    return Packs(
        rows,
        jnp.arange(len(items), dtype=jnp.int32)[None, :, None],
        jnp.asarray([len(items)], jnp.int32),
        rearrange(packed.num_tokens, "item template 1 -> 1 template item"),
        rearrange(packed.num_answer, "item 1 slot -> 1 item slot"),
    )


def make_evaluate(
    space: Space, packs: Packs, *, shard: int, chunk: int
) -> Callable[[np.ndarray, np.ndarray], Evaluated]:
    """Evaluate up to ``shard`` harnesses on all items; compiled once.

    The prefix of each harness is encoded once for all items.
    """

    @jax.jit
    def run(decoder, table, packs, template, shots):
        num = packs.items.shape[1]
        batch = Batch(
            jnp.zeros_like(template),
            template,
            shots,
            jnp.broadcast_to(jnp.arange(num), (len(template), num)),
        )
        out = measure(
            decoder, table, packs, batch, width=space.width, chunk=chunk,
            implementation=space.implementation, with_exact=True,
        )  # fmt: skip
        return out.nats[..., 0], out.exact[..., 0], out.tokens

    def evaluate(template: np.ndarray, shots: np.ndarray) -> Evaluated:
        num = len(template)
        fill = np.minimum(np.arange(shard), num - 1)  # one shape for every shard
        out = run(space.model.decoder, space.table, packs, template[fill], shots[fill])
        return Evaluated(*(np.asarray(array)[:num] for array in jax.device_get(out)))

    return evaluate


def main(
    config: LandscapeConfig, *, model: Model | None = None, task: Task | None = None
) -> Landscape:
    """Evaluate what is not yet done, and write the file."""
    if config.quick:
        config = dataclasses.replace(config, templates=2, pool=3, k=2, items=4, shard=4)
    on_cpu = jax.default_backend() == "cpu"
    shard = config.shard or (8 if on_cpu else 128)
    chunk = min(config.chunk or (2 if on_cpu else 16), shard)
    space, items = build(config, model, task)
    packs = one_item_packs(space, items)
    template, shots = all_harnesses(config.templates, config.pool, config.k)
    identity = identity_of(config, space, items, packs)
    if config.out.exists():
        found = load_landscape(config.out)
        refuse_other(config.out, found.header["identity"], identity)
        print(f"{config.out}: already complete, {found.loss.shape[0]} harnesses")
        return found
    folder = config.out.with_name(config.out.name + ".partial")
    shard = _open_partial(folder, identity, shard)
    todo = [
        (number, first)
        for number, first in enumerate(range(0, len(template), shard))
        if not _shard_path(folder, number).exists()
    ]
    done = len(template) - sum(min(shard, len(template) - at) for _, at in todo)
    print(
        f"{len(template)} harnesses x {len(items)} items of {config.task}"
        + (f", {done} done before" if done else "")
    )
    evaluate = make_evaluate(space, packs, shard=shard, chunk=chunk)
    try:
        with (
            jax.default_matmul_precision(config.precision),
            Progress("landscape", total=len(template) - done) as bar,
        ):
            finished = 0
            for number, first in todo:
                started = time.monotonic()
                part = slice(first, first + shard)
                found = evaluate(template[part], shots[part])
                _check_shard(found)
                seconds = np.float64(time.monotonic() - started)
                write_arrays(
                    _shard_path(folder, number),
                    found._asdict() | {"seconds": seconds},
                )
                finished += len(found.tokens)
                bar.update(finished, {"mean nats": float(found.losses.mean())})
    except KeyboardInterrupt:
        print(
            f"stopped; {len(list(folder.glob('shard-*.npz')))} shards of {shard} "
            f"harnesses are kept in {folder}. The same command continues."
        )
        raise SystemExit(130) from None
    landscape = _merge(config, space, items, packs, identity, folder, template, shots)
    save_landscape(config.out, landscape)
    shutil.rmtree(folder)
    means = landscape.mean_losses
    print(
        f"{config.out}: {len(template)} harnesses x {len(items)} items; mean loss "
        f"{means.mean():.3f} nats, best {means.min():.3f}, worst {means.max():.3f}; "
        f"{landscape.header['seconds']:.0f} s of evaluation"
    )
    return load_landscape(config.out)


def identity_of(
    config: LandscapeConfig, space: Space, items: Sequence[Item], packs: Packs
) -> dict[str, Any]:
    """What decides the numbers: settings, and digests of model, task and tokens."""
    settings = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _FREE
    }
    arrays = [np.asarray(x) for x in (*space.table, *packs.rows)]
    tokens = hashlib.sha256("".join(map(digest_of, arrays)).encode()).hexdigest()
    digests = {
        "model_digest": space.model.digest,
        "task_fingerprint": space.tasks[0].fingerprint,
        "token_digest": tokens,
        "item_uids": [item.uid for item in items],
    }
    return jsonfile.json_safe(settings | digests)


def _merge(config, space, items, packs, identity, folder, template, shots) -> Landscape:
    parts = [read_arrays(path) for path in sorted(folder.glob("shard-*.npz"))]
    arrays = {
        name: np.concatenate([part[name] for part in parts])
        for name in Evaluated._fields
    }
    pool = space.harness.candidates
    origin = provenance.collect(
        argv=sys.argv,
        data={
            "model": space.model.digest,
            space.tasks[0].name: space.tasks[0].fingerprint,
        },
    )
    header = {
        "config": dataclasses.asdict(config),
        "identity": identity,
        "slots": {
            "template": {"kind": "categorical", "n": config.templates, "k": 1},
            "exemplars": {"kind": "ranking", "n": config.pool, "k": config.k},
        },
        "templates": [one.name for one in space.harness.template.pool],
        "exemplars": [{"uid": one.uid, "kind": one.kind} for one in pool],
        "items": [item.uid for item in items],
        "seconds": float(sum(part["seconds"] for part in parts)),
        "num_tokens": int(arrays["tokens"].sum()),
        "provenance": origin,
    }
    return Landscape(
        template,
        shots,
        arrays["losses"],
        arrays["reward"],
        np.asarray(packs.num_answer[0, :, 0]),
        arrays["tokens"],
        jsonfile.json_safe(header),
    )


def _open_partial(folder: Path, identity: dict[str, Any], shard: int) -> int:
    """Start or continue; the shard size that the folder was begun with."""
    state = folder / "state.json"
    if not state.exists():
        folder.mkdir(parents=True, exist_ok=True)
        jsonfile.write_json(state, {"identity": identity, "shard": shard})
        return shard
    begun = jsonfile.read_json(state)
    refuse_other(folder, begun["identity"], identity)
    return int(begun["shard"])


def refuse_other(path: Path, begun: dict[str, Any], asked: dict[str, Any]) -> None:
    names = sorted(begun.keys() | asked.keys())
    differ = [name for name in names if begun.get(name) != asked.get(name)]
    if differ:
        shown = ", ".join(
            f"{name} {_short(begun.get(name))} there, {_short(asked.get(name))} asked"
            for name in differ
        )
        raise RunError(
            f"{path}: belongs to another configuration ({shown}); choose another "
            "--out, or remove it"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.npz"


def _check_shard(found: Evaluated) -> None:
    if not np.isfinite(found.losses).all():
        raise RunError(
            "landscape: expected finite losses, got others; use --dtype float32 and "
            "check the model"
        )


def cli() -> None:
    """Command line; wrong input is one line and status 2."""
    try:
        main(tyro.cli(LandscapeConfig, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    cli()
