"""Checks of `tinker.TrainingClient`."""

import json
import struct
import urllib.request
from typing import Any

import numpy as np
import pytest
import tinker

from tests.conformance.kit import (
    MODEL,
    RANK,
    TOKENS,
    VOCABULARY,
    WAIT_SECONDS,
    Call,
    Kit,
    Refusal,
    adam,
    datum,
    forward,
    image_prompt,
    logprobs_of,
    refused,
    score,
    train,
    works_or_refused,
)
from tests.conformance.registry import check

ROUND_TRIP = """
import json, tinker
client = {client}
tokenizer = client.get_tokenizer()
tokens = tokenizer.encode("Hello, how are you?", add_special_tokens=False)
print(json.dumps([tokens, tokenizer.decode(tokens), tokenizer.convert_tokens_to_ids("<|im_end|>")]))
"""


def tokenizer_works(kit: Kit, client: str) -> None:
    """In a process of its own: where the hub is, is fixed when a process first looks for it."""
    tokens, text, end = kit.script(ROUND_TRIP.format(client=client))
    assert text == "Hello, how are you?"
    assert end == 2
    assert all(0 <= token < VOCABULARY for token in tokens)


@check("TrainingClient.forward")
def computes_logprobs_and_nothing_else(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    output = call(client, [datum(), datum(TOKENS[:5])], "cross_entropy")
    assert [len(one["logprobs"].to_numpy()) for one in output.loss_fn_outputs] == [15, 4]
    total = sum(float(one["logprobs"].to_numpy().sum()) for one in output.loss_fn_outputs)
    assert output.metrics["loss:sum"] == pytest.approx(-total, rel=1e-4)
    before = forward(client)
    client.optim_step(adam()).result(WAIT_SECONDS)
    np.testing.assert_array_equal(forward(client), before)  # no gradient came of it


@check("TrainingClient.forward_backward")
def lowers_the_loss(kit: Kit, call: Call) -> None:
    client, losses = kit.trainer(), []
    for _ in range(3):
        losses.append(call(client, [datum()], "cross_entropy").metrics["loss:sum"])
        client.optim_step(adam()).result(WAIT_SECONDS)
    assert losses[0] > losses[1] > losses[2]


@check("TrainingClient.forward_backward", case="in many calls before one step")
def gradients_add_up(kit: Kit, call: Call) -> None:
    together, apart = kit.trainer(), kit.trainer()
    first, second = datum(), datum(TOKENS[::-1])
    call(together, [first, second], "cross_entropy")
    call(apart, [first], "cross_entropy")
    call(apart, [second], "cross_entropy")
    for client in (together, apart):
        client.optim_step(adam()).result(WAIT_SECONDS)
    np.testing.assert_allclose(forward(together), forward(apart), atol=1e-4)


@check("TrainingClient.forward_backward", case="sent ahead without waiting")
def requests_run_in_order(kit: Kit, call: Call) -> None:
    del call
    client, pending = kit.trainer(), []
    for _ in range(4):
        pending.append(client.forward_backward([datum()], "cross_entropy"))
        client.optim_step(adam())
    losses = [one.result(WAIT_SECONDS).metrics["loss:sum"] for one in pending]
    assert losses == sorted(losses, reverse=True)
    waiting = kit.trainer()
    assert losses == [train(waiting) for _ in losses]


@check("TrainingClient.forward_backward", case="with more data than fits one request")
def many_datums(kit: Kit, call: Call) -> None:
    lengths = [3 + number % 3 for number in range(1100)]  # over the SDK's default of 1024 a request
    output = call(kit.trainer(), [datum(TOKENS[:length]) for length in lengths], "cross_entropy")
    assert [len(one["logprobs"].to_numpy()) + 1 for one in output.loss_fn_outputs] == lengths


@check("TrainingClient.forward_backward", case="with one token of input")
def one_token(kit: Kit, call: Call) -> Refusal | None:
    client = kit.trainer()
    output, refusal = works_or_refused(lambda: call(client, [datum(TOKENS[:2])], "cross_entropy"))
    if refusal is None:
        np.testing.assert_allclose(logprobs_of(output), forward(client)[:1], atol=1e-5)
    return refusal


@check("TrainingClient.forward_backward", case="with several weighted targets a position")
def soft_targets(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    targets = np.array([[token, 5] for token in TOKENS[1:]])
    weights = np.tile(np.array([0.75, 0.25], dtype=np.float32), (len(targets), 1))
    soft = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(targets),
            "weights": tinker.TensorData.from_numpy(weights),
        },
    )
    output = call(client, [soft], "cross_entropy")
    logprobs = logprobs_of(output)
    assert logprobs.shape == targets.shape
    np.testing.assert_allclose(logprobs[:, 0], forward(client), atol=1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(-float((weights * logprobs).sum()), rel=1e-4)


def policy_loss(kit: Kit, call: Call, name: str, config: dict[str, float] | None = None) -> Any:
    """lp, q, A and the loss the server reports for them; q is off by a different ratio each token."""
    client = kit.trainer()
    current = forward(client)
    sampled = current + np.linspace(-0.5, 0.5, len(current), dtype=np.float32)
    advantages = np.where(np.arange(len(current)) % 2, 1.0, -2.0).astype(np.float32)
    data = [datum(logprobs=sampled.tolist(), advantages=advantages.tolist())]
    output = call(client, data, name, config)
    np.testing.assert_allclose(logprobs_of(output), current, atol=1e-5)
    return current, np.exp(current - sampled), advantages, output.metrics["loss:sum"]


@check("TrainingClient.forward_backward", case="loss importance_sampling")
def importance_sampling(kit: Kit, call: Call) -> None:
    _, ratio, advantage, loss = policy_loss(kit, call, "importance_sampling")
    assert loss == pytest.approx(-(ratio * advantage).sum(), rel=1e-3, abs=1e-3)


@check("TrainingClient.forward_backward", case="loss ppo")
def ppo(kit: Kit, call: Call) -> None:
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    _, ratio, advantage, loss = policy_loss(kit, call, "ppo", config)
    expected = -np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage).sum()
    assert loss == pytest.approx(expected, rel=1e-3, abs=1e-3)


@check("TrainingClient.forward_backward", case="loss cispo")
def cispo(kit: Kit, call: Call) -> None:
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    current, ratio, advantage, loss = policy_loss(kit, call, "cispo", config)
    expected = -(np.clip(ratio, 0.9, 1.1) * advantage * current).sum()
    assert loss == pytest.approx(expected, rel=1e-3, abs=1e-3)


@check("TrainingClient.forward_backward", case="loss dro")
def dro(kit: Kit, call: Call) -> None:
    current, ratio, advantage, loss = policy_loss(kit, call, "dro", {"beta": 0.1})
    expected = -(current * advantage - 0.05 * np.log(ratio) ** 2).sum()
    assert loss == pytest.approx(expected, rel=1e-3, abs=1e-3)


@check("TrainingClient.forward_backward", case="loss gspo")
def gspo(kit: Kit, call: Call) -> None:
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}  # wide: the ratio itself shows
    _, ratio, advantage, loss = policy_loss(kit, call, "gspo", config)
    assert loss == pytest.approx(-(np.exp(np.log(ratio).mean()) * advantage).sum(), rel=1e-3, abs=1e-3)


@check("TrainingClient.forward_backward", case="loss stable_reinforce")
def stable_reinforce(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: policy_loss(kit, call, "stable_reinforce"))


@check("TrainingClient.forward_backward", case="with a loss nobody knows")
def unknown_loss(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.trainer(), [datum()], "no_such_loss"))


@check("TrainingClient.forward_backward", case="with an image")
def image(kit: Kit, call: Call) -> Refusal:
    inputs = {"target_tokens": [1, 2, 3, 4], "weights": [1.0] * 4}
    picture = tinker.Datum(model_input=image_prompt(), loss_fn_inputs=inputs)
    return refused(lambda: call(kit.trainer(), [picture], "cross_entropy"))


@check("TrainingClient.forward_backward", case="with a token outside the vocabulary")
def unknown_token(kit: Kit, call: Call) -> Refusal:
    client = kit.trainer()
    refusal = refused(lambda: call(client, [datum([1, 2, VOCABULARY])], "cross_entropy"))
    assert train(client) > 0, "a refused request must not block those after it"
    return refusal


@check("TrainingClient.forward_backward_custom")
def runs_the_loss_in_the_client(kit: Kit, call: Call) -> None:
    client, seen = kit.trainer(), []

    def squared(data: Any, logprobs: Any) -> tuple[Any, dict[str, float]]:
        seen.append([len(one) for one in logprobs])
        loss = sum((one**2).sum() for one in logprobs)
        return loss, {"datums": float(len(data))}

    before = forward(client)
    result = call(client, [datum()], squared)
    client.optim_step(adam()).result(WAIT_SECONDS)
    assert seen == [[15]]
    if "surrogate_loss:sum" in result.metrics:  # else, up to some version, loss:sum is the surrogate
        assert result.metrics["loss:sum"] == pytest.approx(float((before**2).sum()), rel=1e-3)
    assert result.metrics["datums"] == 1.0
    assert float((forward(client) ** 2).sum()) < float((before**2).sum())


@check("TrainingClient.optim_step")
def first_adam_step_has_the_learning_rate(kit: Kit, call: Call) -> None:
    small, large, none = kit.trainer(), kit.trainer(), kit.trainer()
    start = forward(small)
    for client, rate in ((small, 1e-4), (large, 1e-2), (none, 0.0)):
        client.forward_backward([datum()], "cross_entropy").result(WAIT_SECONDS)
        call(client, adam(rate))
    moved = [float(np.abs(forward(client) - start).max()) for client in (none, small, large)]
    assert moved[0] == 0.0
    assert 0.0 < moved[1] < moved[2]


@check("TrainingClient.optim_step", case="with a gradient norm to clip to")
def clipping_reports_the_norm(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    client.forward_backward([datum()], "cross_entropy").result(WAIT_SECONDS)
    metrics = call(client, tinker.AdamParams(learning_rate=1e-3, grad_clip_norm=0.5)).metrics or {}
    assert all(np.isfinite(value) for value in metrics.values())


@check("TrainingClient.optim_step", option="optim_params", case="dimuon")
def dimuon_step(kit: Kit, call: Call) -> Refusal:
    client = kit.trainer()
    client.forward_backward([datum()], "cross_entropy").result(WAIT_SECONDS)
    return refused(lambda: call(client, tinker.types.DimuonParams(learning_rate=1e-3)))


@check("TrainingClient.save_state")
def names_a_training_checkpoint(kit: Kit, call: Call) -> None:
    name = kit.name()
    path = call(kit.trained, name).path
    assert path == f"tinker://{kit.trained.model_id}/weights/{name}"
    entry = kit.listed(path)
    assert (entry.checkpoint_type, entry.checkpoint_id) == ("training", f"weights/{name}")
    assert entry.size_bytes > 0


@check("TrainingClient.save_state", option="ttl_seconds")
def checkpoint_expires(kit: Kit, call: Call) -> None:
    entry = kit.listed(call(kit.trained, kit.name(), ttl_seconds=7200).path)
    assert (entry.expires_at - entry.time).total_seconds() == pytest.approx(7200, abs=60)


@check("TrainingClient.save_state", option="user_metadata")
def checkpoint_keeps_metadata(kit: Kit, call: Call) -> None:
    path = call(kit.trained, kit.name(), user_metadata={"step": "2"}).path
    assert kit.listed(path).user_metadata == {"step": "2"}


@check("TrainingClient.save_state", option="overwrite")
def overwrites_when_told_to(kit: Kit, call: Call) -> None:
    client, name = kit.trainer(), kit.name()
    call(client, name)
    train(client)
    path = call(client, name, overwrite=True).path
    copy = kit.service.create_training_client_from_state(path)
    np.testing.assert_array_equal(forward(copy), forward(client))


@check("TrainingClient.save_state", case="under a name that is taken")
def taken_name(kit: Kit, call: Call) -> Refusal:
    client, name = kit.trainer(), kit.name()
    call(client, name)
    return refused(lambda: call(client, name))


@check("TrainingClient.load_state")
def brings_the_weights_back(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    train(client)
    then, path = forward(client), client.save_state(kit.name()).result(WAIT_SECONDS).path
    train(client, steps=2)
    assert np.abs(forward(client) - then).max() > 1e-4
    call(client, path)
    np.testing.assert_array_equal(forward(client), then)


@check("TrainingClient.load_state_with_optimizer")
def brings_the_optimizer_back(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    train(client, steps=2)
    path = client.save_state(kit.name()).result(WAIT_SECONDS).path
    train(client)
    once = forward(client)
    call(client, path)
    train(client)
    np.testing.assert_array_equal(forward(client), once)


@check("TrainingClient.save_weights_for_sampler")
def names_sampler_weights(kit: Kit, call: Call) -> None:
    name = kit.name()
    path = call(kit.trained, name).path
    assert path == f"tinker://{kit.trained.model_id}/sampler_weights/{name}"
    assert kit.listed(path).checkpoint_type == "sampler"


@check("TrainingClient.create_sampling_client")
def samples_what_was_trained(kit: Kit, call: Call) -> None:
    sampler = call(kit.trained, kit.sampler_checkpoint())
    np.testing.assert_allclose(score(sampler), forward(kit.trained), atol=1e-4)


@check("TrainingClient.save_weights_and_get_sampling_client")
def snapshot_stays_as_it_was(kit: Kit, call: Call) -> None:
    client = kit.trainer()
    train(client)
    snapshot, then = call(client), forward(client)
    np.testing.assert_allclose(score(snapshot), then, atol=1e-4)
    train(client, steps=3)
    np.testing.assert_allclose(score(snapshot), then, atol=1e-4)
    np.testing.assert_allclose(score(call(client)), forward(client), atol=1e-4)


@check("TrainingClient.save_weights_external")
def writes_a_peft_adapter(kit: Kit, call: Call) -> None:
    name = kit.name()
    path = call(kit.trained, name).path
    assert path == f"tinker://{kit.trained.model_id}/external_weights/{name}"
    urls = kit.rest.get_external_weights_urls(path).result(WAIT_SECONDS).urls
    config = json.loads(fetch(urls["adapter_config.json"]))
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", RANK, MODEL)
    shapes = safetensors_shapes(fetch(urls["adapter_model.safetensors"]))
    assert shapes
    assert all(".lora_A." in key or ".lora_B." in key for key in shapes)
    assert all(RANK in shape for shape in shapes.values())


@check("TrainingClient.save_weights_external", option="age_encryption_recipients")
def encryption(kit: Kit, call: Call) -> Refusal:
    recipients = ["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kudsgdrs4sw5c0"]
    return refused(lambda: call(kit.trained, kit.name(), age_encryption_recipients=recipients))


@check("TrainingClient.get_info")
def describes_the_run(kit: Kit, call: Call) -> None:
    info = call(kit.trained)
    assert info.model_id == kit.trained.model_id
    assert (info.model_data.model_name, info.is_lora, info.lora_rank) == (MODEL, True, RANK)


@check("TrainingClient.get_tokenizer", twin=False)
def tokenizer(kit: Kit, call: Call) -> None:
    del call
    tokenizer_works(kit, f"tinker.ServiceClient().create_lora_training_client({MODEL!r}, rank={RANK})")


@check("TrainingClient.get_console_url", twin=False)
def is_a_url(kit: Kit, call: Call) -> None:
    assert call(kit.trained).startswith("https://")


@check("TrainingClient.get_telemetry", twin=False)
def telemetry_is_accepted(kit: Kit, call: Call) -> None:
    assert call(kit.trained) is not None


def fetch(url: str) -> bytes:
    """As a browser would: no key, no header."""
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as answer:
        return answer.read()


def safetensors_shapes(content: bytes) -> dict[str, list[int]]:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
