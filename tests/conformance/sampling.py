"""Checks of `tinker.SamplingClient`."""

import json
import logging
import pickle
from typing import Any

import numpy as np
import tinker

from tests.conformance.kit import (
    MODEL,
    TOKENS,
    WAIT_SECONDS,
    Call,
    Kit,
    Refusal,
    forward,
    image_prompt,
    prompt,
    refused,
    score,
)
from tests.conformance.registry import check
from tests.conformance.training import tokenizer_works

POSITIONS = len(TOKENS)


def params(max_tokens: int = 8, **arguments: Any) -> tinker.SamplingParams:
    return tinker.SamplingParams(**{"max_tokens": max_tokens, "seed": 5, "stop": [], **arguments})


def scored(kit: Kit, call: Call, **asked: Any) -> Any:
    """One prefill of the prompt with what is asked about its tokens."""
    return call(kit.sampler, prompt(), 1, params(1), include_prompt_logprobs=True, **asked)


@check("SamplingClient.sample")
def repeats_with_a_seed_and_agrees_with_the_trainer(kit: Kit, call: Call) -> None:
    sampler = kit.trained.save_weights_and_get_sampling_client()
    first, again = (call(sampler, prompt(), 2, params()).sequences for _ in range(2))
    assert [one.tokens for one in first] == [one.tokens for one in again]
    assert first[0].tokens != first[1].tokens, "two samples of one request are two draws"
    for sequence in first:
        assert (len(sequence.tokens), sequence.stop_reason) == (8, "length")
        trained = forward(kit.trained, TOKENS + list(sequence.tokens))[-8:]
        np.testing.assert_allclose(sequence.logprobs, trained, atol=1e-4)


@check("SamplingClient.sample", case="with another seed")
def other_seed_other_tokens(kit: Kit, call: Call) -> None:
    drawn = [
        tuple(call(kit.sampler, prompt(), 1, params(seed=seed)).sequences[0].tokens) for seed in range(4)
    ]
    assert len(set(drawn)) > 1


@check("SamplingClient.sample", case="at temperature 0")
def greedy_takes_the_likeliest(kit: Kit, call: Call) -> None:
    response = call(kit.sampler, prompt(), 2, params(temperature=0.0, seed=None))
    one, other = response.sequences
    assert one.tokens == other.tokens
    whole = call(kit.sampler, prompt(TOKENS + list(one.tokens)), 1, params(1), topk_prompt_logprobs=1)
    likeliest = [row[0][0] for row in whole.topk_prompt_logprobs[POSITIONS:]]
    assert likeliest == list(one.tokens)


@check("SamplingClient.sample", case="with top_k 1")
def top_k_one_is_greedy(kit: Kit, call: Call) -> None:
    narrow = call(kit.sampler, prompt(), 1, params(top_k=1)).sequences[0].tokens
    assert narrow == call(kit.sampler, prompt(), 1, params(temperature=0.0)).sequences[0].tokens


@check("SamplingClient.sample", case="with tokens to stop at")
def stops_at_a_token(kit: Kit, call: Call) -> None:
    tokens = list(call(kit.sampler, prompt(), 1, params()).sequences[0].tokens)
    stopped = call(kit.sampler, prompt(), 1, params(stop=[tokens[3]])).sequences[0]
    assert list(stopped.tokens) == tokens[: tokens.index(tokens[3]) + 1]
    assert stopped.stop_reason == "stop"


@check("SamplingClient.sample", case="with text to stop at")
def stops_at_a_text(kit: Kit, call: Call) -> None:
    every_letter = [*"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", " "]
    stopped = call(kit.sampler, prompt(), 1, params(64, stop=every_letter)).sequences[0]
    assert stopped.stop_reason == "stop"
    assert len(stopped.tokens) < 64


@check("SamplingClient.sample", case="with an image")
def image(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.sampler, image_prompt(), 1, params()))


@check("SamplingClient.sample", case="with more tokens than the model can hold")
def too_long(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.sampler, prompt(TOKENS * 1000), 1, params()))


@check("SamplingClient.sample", case="from many callers at once")
def many_at_once(kit: Kit, call: Call) -> None:
    alone = call(kit.sampler, prompt(), 1, params()).sequences[0].tokens
    pending = [kit.sampler.sample(prompt(), 1, params()) for _ in range(16)]
    for one in pending:
        assert one.result(WAIT_SECONDS).sequences[0].tokens == alone


@check("SamplingClient.sample", option="include_prompt_logprobs")
def prompt_logprobs_equal_compute_logprobs(kit: Kit, call: Call) -> None:
    response = scored(kit, call)
    assert len(response.prompt_logprobs) == POSITIONS
    assert response.prompt_logprobs[0] is None
    np.testing.assert_allclose(response.prompt_logprobs[1:], score(kit.sampler), atol=1e-5)


@check("SamplingClient.sample", option="topk_prompt_logprobs")
def topk_of_the_prompt(kit: Kit, call: Call) -> None:
    response = scored(kit, call, topk_prompt_logprobs=4)
    assert len(response.topk_prompt_logprobs) == POSITIONS
    assert response.topk_prompt_logprobs[0] is None
    for token, logprob, row in zip(
        TOKENS[1:], response.prompt_logprobs[1:], response.topk_prompt_logprobs[1:], strict=True
    ):
        values = [value for _, value in row]
        assert len(row) == 4
        assert values == sorted(values, reverse=True)
        if token in dict(row):
            np.testing.assert_allclose(dict(row)[token], logprob, atol=1e-5)
        else:
            assert logprob <= values[-1]


@check("SamplingClient.sample", option="topk_sample_logprobs")
def topk_of_the_sample(kit: Kit, call: Call) -> None:
    sequence = call(kit.sampler, prompt(), 1, params(), topk_sample_logprobs=3).sequences[0]
    assert [len(row) for row in sequence.topk_logprobs] == [3] * 8
    for token, logprob, row in zip(sequence.tokens, sequence.logprobs, sequence.topk_logprobs, strict=True):
        if token in dict(row):
            np.testing.assert_allclose(dict(row)[token], logprob, atol=1e-5)


@check("SamplingClient.sample", option="target_prompt_logprobs")
def targets_of_the_prompt(kit: Kit, call: Call) -> None:
    ids = np.array([[token, 5, -1] for token in TOKENS[1:]])
    response = scored(
        kit, call, target_prompt_logprobs=tinker.TensorData.from_numpy(ids), topk_prompt_logprobs=64
    )
    found = response.target_prompt_logprobs.to_numpy()
    assert found.shape == ids.shape
    np.testing.assert_allclose(found[:, 0], response.prompt_logprobs[1:], atol=1e-5)
    np.testing.assert_array_equal(found[:, 2], 0.0)
    for value, row in zip(found[:, 1], response.topk_prompt_logprobs[1:], strict=True):
        if 5 in dict(row):
            np.testing.assert_allclose(value, dict(row)[5], atol=1e-5)


@check("SamplingClient.sample", option="prompt_alt_tokens_k")
def alternatives_to_the_prompt(kit: Kit, call: Call) -> None:
    drawn = scored(kit, call, prompt_alt_tokens_k=3).prompt_alt_tokens
    tokens, logprobs = drawn.tokens.to_numpy(), drawn.logprobs.to_numpy()
    assert tokens.shape == logprobs.shape == (POSITIONS - 1, 3)
    asked = tinker.TensorData.from_numpy(tokens)
    found = scored(kit, call, target_prompt_logprobs=asked).target_prompt_logprobs.to_numpy()
    np.testing.assert_allclose(logprobs, found, atol=1e-5)


@check("SamplingClient.sample", option="prompt_logprobs_last_n")
def only_the_end_of_the_prompt(kit: Kit, call: Call) -> None:
    response = scored(kit, call, prompt_logprobs_last_n=4, topk_prompt_logprobs=2)
    assert response.prompt_logprobs[:-4] == [None] * (POSITIONS - 4)
    assert response.topk_prompt_logprobs[:-4] == [None] * (POSITIONS - 4)
    np.testing.assert_allclose(response.prompt_logprobs[-4:], score(kit.sampler)[-4:], atol=1e-5)


@check("SamplingClient.sample", case="after being pickled to another process")
def pickled_to_another_process(kit: Kit, call: Call) -> None:
    code = """
import json, pickle, sys, tinker
client, prompt, params = pickle.load(sys.stdin.buffer)
print(json.dumps(list(client.sample(prompt, 1, params).result().sequences[0].tokens)))
"""
    carried = pickle.dumps((kit.sampler, prompt(), params()))
    assert kit.script(code, stdin=carried) == list(
        call(kit.sampler, prompt(), 1, params()).sequences[0].tokens
    )


@check("SamplingClient.compute_logprobs")
def scores_as_the_trainer_does(kit: Kit, call: Call) -> None:
    sampler = kit.trained.save_weights_and_get_sampling_client()
    first, *rest = call(sampler, prompt())
    assert first is None
    np.testing.assert_allclose(rest, forward(kit.trained), atol=1e-4)


@check("SamplingClient.compute_logprobs", option="prompt_logprobs_last_n")
def scores_only_the_end(kit: Kit, call: Call) -> None:
    logprobs = call(kit.sampler, prompt(), prompt_logprobs_last_n=3)
    assert logprobs[:-3] == [None] * (POSITIONS - 3)
    np.testing.assert_allclose(logprobs[-3:], score(kit.sampler)[-3:], atol=1e-5)


@check("SamplingClient.create", twin=False)
def is_what_the_service_uses(kit: Kit, call: Call) -> None:
    sampler = call(tinker.SamplingClient, kit.service.holder, base_model=MODEL)
    np.testing.assert_allclose(score(sampler), score(kit.sampler), atol=1e-5)


@check("SamplingClient.get_sampler_handle", twin=False)
def handle_carries_no_key(kit: Kit, call: Call) -> None:
    import base64

    handle = call(kit.sampler)
    assert kit.key not in base64.urlsafe_b64decode(handle).decode()
    assert json.loads(base64.urlsafe_b64decode(handle))


@check("SamplingClient.from_sampler_handle", twin=False)
def handle_gives_the_same_sampler(kit: Kit, call: Call) -> None:
    sampler = kit.trained.save_weights_and_get_sampling_client()
    copy = call(tinker.SamplingClient, sampler.get_sampler_handle(), api_key=kit.key)
    assert copy.sample(prompt(), 1, params()).result(WAIT_SECONDS).sequences[0].tokens == (
        sampler.sample(prompt(), 1, params()).result(WAIT_SECONDS).sequences[0].tokens
    )


@check("SamplingClient.get_base_model")
def names_the_base_model(kit: Kit, call: Call) -> None:
    assert call(kit.sampler) == MODEL
    assert call(kit.trained.save_weights_and_get_sampling_client()) == MODEL


@check("SamplingClient.get_tokenizer", twin=False)
def tokenizer(kit: Kit, call: Call) -> None:
    del call
    tokenizer_works(kit, f"tinker.ServiceClient().create_sampling_client(base_model={MODEL!r})")


@check("SamplingClient.get_telemetry", twin=False)
def telemetry_is_accepted(kit: Kit, call: Call) -> None:
    assert call(kit.sampler) is not None


@check("SamplingClient.on_queue_state_change", twin=False)
def tells_why_sampling_waits(kit: Kit, call: Call) -> None:
    """The one check with something private: the SDK calls this method itself when a server is busy."""
    from tinker.lib.api_future_impl import QueueState

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("tinker.lib.public_interfaces.sampling_client")
    logger.addHandler(handler)
    try:
        call(kit.service.create_sampling_client(base_model=MODEL), QueueState.PAUSED_CAPACITY, "very busy")
    finally:
        logger.removeHandler(handler)
    assert "very busy" in told[0]
