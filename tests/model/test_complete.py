"""Batches of requests give what each request gives alone, by the plain decode loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_model, plain_log_probs, plain_nats

from metaharness.errors import InputError
from metaharness.model.batching import Block, Shapes
from metaharness.model.complete import Completer
from metaharness.model.generate import make_decode, read_questions
from metaharness.model.prefix import encode_prefix
from metaharness.model.request import Request
from metaharness.model.writing import jitted_start

MODEL = make_model()


def ids(text):
    return tuple(MODEL.tokenizer.encode(text))


def make_requests(**changes):
    prefixes = (ids("ab"), ids("a longer prefix of this one"))
    questions = ("1+1", "2", "what is it?", "3+4=", "5", "66", "777 and more")
    return [
        Request(prefixes[i % 2], ids(question), 12, **changes)
        for i, question in enumerate(questions)
    ]


def plain(request):
    """Greedy tokens by whole forward passes, with their nats."""
    tokens, nats = [*request.prefix, *request.question], []
    start = len(tokens)
    for _ in range(request.max_new_tokens):
        log_p = plain_log_probs(MODEL.decoder, tokens)[-1]
        token = int(log_p.argmax())
        nats.append(-float(log_p[token]))
        if token in MODEL.tokenizer.eos_ids:
            break
        tokens.append(token)
    return tokens[start:], nats


def test_greedy_texts_and_nats_are_those_of_whole_forward_passes():
    requests = make_requests()
    found = Completer(MODEL, rows_at_once=2, tokens_at_once=128)(requests)
    for request, one in zip(requests, found, strict=True):
        tokens, nats = plain(request)
        assert one.text == MODEL.tokenizer.decode(tokens)
        assert one.num_tokens == len(tokens)
        assert one.nats == pytest.approx(sum(nats), rel=1e-4)
        assert one.ended == (len(nats) > len(tokens))


def test_a_request_does_not_depend_on_its_batch():
    requests = [
        r._replace(temperature=1.0 * (i % 3 > 0), seed=i)
        for i, r in enumerate(make_requests())
    ]
    whole = Completer(MODEL)(requests)
    alone = [Completer(MODEL)([request])[0] for request in requests]
    assert [one.text for one in whole] == [one.text for one in alone]
    other = Completer(MODEL)([r._replace(seed=r.seed + 50) for r in requests])
    sampled = [i for i in range(len(requests)) if i % 3]
    assert any(whole[i].text != other[i].text for i in sampled)
    assert all(whole[i].text == other[i].text for i in (0, 3, 6))


def test_a_stop_text_ends_a_row_before_it():
    request = make_requests()[0]._replace(max_new_tokens=100)
    (free,) = Completer(MODEL)([request])
    stop = free.text[40:43]
    at = free.text.index(stop)
    (cut,) = Completer(MODEL)([request._replace(stops=(stop, "never seen"))])
    assert cut.text == free.text[:at] and cut.ended
    assert len(MODEL.tokenizer.encode(cut.text)) < cut.num_tokens <= at + 3
    assert cut.nats < free.nats


def test_options_are_scored_as_answers():
    options = (ids("yes"), ids("no"), ids("perhaps"))
    requests = [r._replace(options=options) for r in make_requests()]
    requests.append(make_requests()[0])  # one that is written beside them
    found = Completer(MODEL)(requests)
    for request, one in zip(requests[:-1], found, strict=False):
        for option, nats in zip(options, one.option_nats, strict=True):
            prompt = [*request.prefix, *request.question]
            own = plain_nats(MODEL.decoder, prompt, option)
            assert nats == pytest.approx(own, rel=1e-4)
    assert found[-1].text and not found[-1].option_nats


def test_cost_counts_a_shared_prefix_once():
    requests = make_requests()
    batches = list(Completer(MODEL).batches(requests))
    places = sorted(place for batch in batches for place, _ in batch.completions)
    assert places == list(range(len(requests)))
    tokens = sum(batch.token_forwards for batch in batches)
    written = sum(one.num_tokens for batch in batches for _, one in batch.completions)
    prefixes = sum(len(prefix) for prefix in {r.prefix for r in requests})
    questions = sum(len(request.question) for request in requests)
    assert tokens == prefixes + questions + written
    assert all(batch.padded_tokens >= 0 for batch in batches)


def test_few_shapes_are_compiled():
    completer = Completer(MODEL)
    completer(make_requests())
    start = jitted_start(12, "xla")
    sizes = start._cache_size()
    completer([r._replace(question=r.question[::-1]) for r in make_requests()[1:]])
    assert start._cache_size() == sizes


def test_a_smaller_block_takes_a_shape_that_was_compiled():
    def block(groups, rows, prefix, question, room=12):
        return Block([[0] * rows] * groups, groups, rows, prefix, question, room)

    shapes = Shapes()

    def settled(*sizes):
        (one,) = shapes.settle([block(*sizes)], tokens=500)
        assert one.groups == block(*sizes).groups
        return one[1:]

    assert settled(4, 2, 16, 16) == (4, 2, 16, 16, 12)  # 288 tokens
    assert settled(2, 2, 16, 12) == (4, 2, 16, 16, 12)  # 128
    assert settled(1, 1, 16, 16) == (1, 1, 16, 16, 12)  # 44: it would be 6 times more
    assert settled(2, 1, 16, 16) == (2, 1, 16, 16, 12)  # 88: 3.3 times
    assert settled(1, 1, 12, 16) == (1, 1, 16, 16, 12)  # the smaller of two that hold
    assert settled(4, 2, 24, 16) == (4, 2, 24, 16, 12)  # wider than any
    assert settled(2, 2, 16, 12, 8) == (2, 2, 16, 12, 8)  # another room
    assert settled(8, 4, 16, 16) == settled(8, 4, 16, 16)  # 1,024: above the limit
    assert settled(8, 3, 16, 16) == (8, 3, 16, 16, 12)  # no padding beyond it


def test_texts_do_not_depend_on_what_was_compiled_before():
    requests = make_requests()
    fresh = [Completer(MODEL)([request])[0] for request in requests]
    used = Completer(MODEL)
    used([r._replace(question=r.question * 2) for r in requests])
    again = [used([request])[0] for request in requests]
    assert [one.text for one in again] == [one.text for one in fresh]
    for one, other in zip(again, fresh, strict=True):
        assert one.nats == pytest.approx(other.nats, rel=1e-5)


def short_of_memory(completer, monkeypatch, most):
    """Lets blocks of more than ``most`` tokens fail as a full device does."""
    write, sizes = completer._write, []

    def full(block, requests):
        sizes.append(block.num_slots)
        if block.num_slots > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return write(block, requests)

    monkeypatch.setattr(completer, "_write", full)
    return sizes


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    requests = make_requests()
    expected = Completer(MODEL)(requests)
    completer = Completer(MODEL)
    sizes = short_of_memory(completer, monkeypatch, 150)
    with pytest.warns(RuntimeWarning, match="did not fit into the device's memory"):
        found = completer(requests)
    assert [one.text for one in found] == [one.text for one in expected]
    assert max(sizes) > 150
    sizes.clear()
    completer(requests)
    assert max(sizes) <= 150, "it forgot what does not fit"


def test_a_request_that_does_not_fit_alone_is_refused(monkeypatch):
    completer = Completer(MODEL)
    short_of_memory(completer, monkeypatch, 10)
    with pytest.warns(RuntimeWarning), pytest.raises(InputError, match="one text of"):
        completer(make_requests())


def test_another_error_of_the_device_goes_through(monkeypatch):
    completer = Completer(MODEL)

    def broken(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    monkeypatch.setattr(completer, "_write", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        completer(make_requests())


def test_the_decode_loop_reports_nats():
    request = make_requests()[1]
    decoder = MODEL.decoder
    prefix = encode_prefix(
        decoder, jnp.asarray([request.prefix]), jnp.asarray([len(request.prefix)])
    )
    asked = jnp.asarray([[request.question]])
    prompted = read_questions(
        decoder, prefix, asked, jnp.asarray([[len(request.question)]]), num_new=12
    )
    decode = make_decode(max_new_tokens=12, stop_ids=MODEL.tokenizer.eos_ids)
    out = jax.jit(decode)(decoder, prefix, prompted, jax.random.key(0)[None, None])
    _, nats = plain(request)
    np.testing.assert_allclose(out.nats[0, 0, : len(nats)], nats, rtol=1e-4)


@pytest.mark.parametrize(
    "change", [{"prefix": ()}, {"question": ()}, {"max_new_tokens": 0}]
)
def test_an_empty_request_is_refused(change):
    with pytest.raises(ValueError, match="expected a prefix, a question"):
        Completer(MODEL)([make_requests()[0]._replace(**change)])
