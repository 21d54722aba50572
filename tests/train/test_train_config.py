"""Settings are checked when built, and each refusal names the field."""

import pytest

from metaharness.errors import InputError
from metaharness.train.config import EvalConfig, SlotConfig, TrainConfig
from metaharness.train.diagnosis import theta_note
from metaharness.train.search_config import SearchConfig
from metaharness.train.stage_config import (
    CheckpointConfig,
    GuardConfig,
    ScheduleConfig,
    WeightsConfig,
)


@pytest.mark.parametrize(
    ("kind", "field", "bad", "good"),
    [
        (SlotConfig, "pool", 0, 5),
        (SlotConfig, "k", 11, 10),
        (SlotConfig, "share_right", 1.1, 1.0),
        (SearchConfig, "warmup_steps", -1, 0),
        (SearchConfig, "relaxed_steps", -1, 0),
        (SearchConfig, "measured_steps", -1, 0),
        (SearchConfig, "trust", -1.1, -1),
        (SearchConfig, "samples", 0, 1),
        (SearchConfig, "relaxed_samples", 0, 1),
        (SearchConfig, "packs", 0, 1),
        (SearchConfig, "chunk", 0, 1),
        (SearchConfig, "pack_width", 15, 16),
        (SearchConfig, "learning_rate", 0.0, 0.1),
        (SearchConfig, "tau", 0.09, 0.1),
        (SearchConfig, "residual", 1.5, 1.0),
        (SearchConfig, "ridge", 0.0, 0.1),
        (SearchConfig, "accumulate", 0, 1),
        (SearchConfig, "estimator", "simple", "proxy"),
        (SearchConfig, "relaxed_estimator", "proxy", "simple"),
        (SearchConfig, "conditioning", "none", "task"),
        (SearchConfig, "shrinkage", -1.0, 0.0),
        (SearchConfig, "decay", "linear", "cosine"),
        (ScheduleConfig, "kind", "both", "joint"),
        (ScheduleConfig, "steps", 0, 1),
        (ScheduleConfig, "weights_block", 0, 1),
        (WeightsConfig, "samples", 0, 1),
        (WeightsConfig, "through", "soft", "gate"),
        (WeightsConfig, "cache", "stale", "exact"),
        (WeightsConfig, "learning_rate", 0.0, 1e-4),
        (WeightsConfig, "clip", 0.0, 1.0),
        (GuardConfig, "entropy_bonus", -0.1, 0.0),
        (GuardConfig, "mask_rate", 0.95, 0.5),
        (GuardConfig, "rollback", -0.1, None),
        (GuardConfig, "patience", 1, 0),
        (CheckpointConfig, "every", 0, 1),
        (CheckpointConfig, "keep", 0, 1),
        (EvalConfig, "train_items", 0, 1),
        (EvalConfig, "validation_items", 0, 1),
        (EvalConfig, "validation_packs", 0, 1),
        (EvalConfig, "test_items", 0, 1),
        (EvalConfig, "random_harnesses", -1, 0),
        (EvalConfig, "sampled_harnesses", -1, 0),
        (EvalConfig, "harnesses_at_once", 0, 1),
        (TrainConfig, "task", (), ("a",)),
        (TrainConfig, "task", ("a", "a"), ("a", "b")),
        (TrainConfig, "dtype", "float16", "bfloat16"),
        (TrainConfig, "attention", "flash", "cudnn"),
    ],
)
def test_a_field_out_of_range_is_named(kind, field, bad, good):
    with pytest.raises(InputError, match=field):
        kind(**{field: bad})
    assert getattr(kind(**{field: good}), field) == good


def test_a_search_has_at_least_one_step():
    none = {"warmup_steps": 0, "relaxed_steps": 0, "measured_steps": 0}
    with pytest.raises(InputError, match="at least one step"):
        SearchConfig(**none)
    assert SearchConfig(**none | {"relaxed_steps": 3}).num_steps == 3
    assert (
        SearchConfig(warmup_steps=1, relaxed_steps=2, measured_steps=4).num_steps == 7
    )


def test_only_the_default_job_spoils_exemplars_unasked():
    assert TrainConfig().share_right == 0.5
    assert TrainConfig(task=("gsm8k",)).share_right == 1.0
    asked = SlotConfig(share_right=0.25)
    assert TrainConfig(task=("gsm8k",), slots=asked).share_right == 0.25


def test_only_joint_updates_learn_through_the_gate():
    gate = WeightsConfig(through="gate", cache="stopped")
    for kind in ("harness", "weights", "alternate", "two-stage"):
        with pytest.raises(InputError, match="weights.through"):
            TrainConfig(weights=gate, schedule=ScheduleConfig(kind=kind))
    assert TrainConfig(weights=gate, schedule=ScheduleConfig(kind="joint"))


def test_a_report_says_what_the_weights_learned_from():
    def note(kind="joint", **weights):
        schedule = ScheduleConfig(kind=kind)
        return theta_note(
            TrainConfig(schedule=schedule, weights=WeightsConfig(**weights))
        ).text

    assert "sequential prompts" in note() and "sequential prompts" in note("weights")
    for cache, said in (
        ("exact", "exact keys"),
        ("stopped", "lacks the part"),
        ("stale", "last encoding"),
    ):
        assert said in note(through="gate", cache=cache)
