"""A template may leave the exemplars out: zero-shot is then one of its candidates."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_space, make_tasks

from components.templates import Template
from metaharness.errors import HarnessError
from metaharness.harness.file import load_harness_file
from metaharness.harness.relaxed import SoftBatch, loss_and_slope
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates

SHOWN, ALONE = Template("bare"), Template("alone", exemplars=False)


@pytest.fixture(scope="module")
def space():
    return make_space(templates=(SHOWN, ALONE))


def losses(space, exemplars, template):
    packs = space.pack("train", width=64, limit=5)
    rows = len(exemplars)
    batch = Batch(
        jnp.zeros(rows, jnp.int32),
        jnp.full(rows, template, jnp.int32),
        jnp.asarray(exemplars, jnp.int32).reshape(rows, -1),
        jnp.zeros((rows, 1), jnp.int32),
    )
    found = measure(
        space.model.decoder, space.table, packs, batch, width=space.width, chunk=rows
    )
    return np.asarray(found.loss())


def test_its_prompt_is_the_zero_shot_one(space):
    item = make_tasks()[0].test[0]
    bare = make_space(0, templates=(SHOWN,))
    expected = bare.prompt_text(Choice((), 0), item)
    assert space.prompt_text(Choice((0, 1), 1), item) == expected
    assert space.prefix_tokens(Choice((0, 1), 1)) == bare.prefix_tokens(Choice((), 0))
    assert space.harness.parts(Choice((0, 1), 1)) == (ALONE, ())
    assert len(space.harness.parts(Choice((0, 1), 0))[1]) == 2


def test_its_loss_is_the_zero_shot_one_whatever_exemplars_are_drawn(space):
    alone = losses(space, [(0, 1), (3, 2)], 1)
    expected = losses(make_space(0, templates=(SHOWN,)), [()], 0)
    np.testing.assert_allclose(alone, np.repeat(expected, 2), rtol=1e-5)
    shown = losses(space, [(0, 1), (3, 2)], 0)
    assert abs(shown[0] - shown[1]) > 0.01


def test_its_gate_reads_no_exemplar_and_has_no_slope(space):
    packs = space.pack("train", width=64, limit=5)
    batch = SoftBatch(
        jnp.zeros(2, jnp.int32), jnp.array([1, 0]), jnp.zeros((2, 1), jnp.int32)
    )
    pool = len(space.harness.candidates)
    arguments = (space.model.decoder, space.encode_pool(), space.table, packs, batch)
    found = [
        loss_and_slope(*arguments, jnp.full((2, pool), weight), chunk=2)
        for weight in (0.3, 0.6)
    ]
    loss, slope = (np.stack([np.asarray(one[i]) for one in found]) for i in (0, 1))
    expected = losses(space, [(0, 1)], 1)[0]
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-4)
    assert (slope[:, 0] == 0).all() and np.isfinite(slope).all()
    own = np.asarray(space.masks["exemplars"][0])
    assert (slope[:, 1][:, own] != 0).all() and abs(loss[0, 1] - loss[1, 1]) > 1e-3


def test_exemplars_that_no_template_shows_are_refused():
    slot = Exemplars.from_tasks(make_tasks(), pool=4, k=2, share_right=0.5)
    with pytest.raises(HarnessError, match="one that shows the exemplars"):
        Harness(slot, Templates((ALONE,)))


def test_a_harness_file_says_so(tmp_path):
    path = tmp_path / "h.toml"
    text = '[[template.candidates]]\nname = "alone"\nexemplars = false\n'
    path.write_text(text)
    assert load_harness_file(path).templates == (ALONE,)
    path.write_text(text.replace("false", '"no"'))
    with pytest.raises(HarnessError, match="h.toml:3: .*true or false"):
        load_harness_file(path)
