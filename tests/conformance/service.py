"""Checks of `tinker.ServiceClient`."""

from typing import Any

import numpy as np
import pytest
import tinker

from tests.conformance.kit import (
    MODEL,
    RANK,
    WAIT_SECONDS,
    Call,
    Kit,
    Refusal,
    datum,
    forward,
    refused,
    score,
    train,
)
from tests.conformance.registry import check

PROJECT = "conformance"


@check("ServiceClient.get_server_capabilities")
def names_the_model(kit: Kit, call: Call) -> None:
    models = {model.model_name: model for model in call(kit.service).supported_models}
    assert MODEL in models
    assert (models[MODEL].max_context_length or 0) >= 512


@check("ServiceClient.create_lora_training_client")
def makes_a_run_of_that_model(kit: Kit, call: Call) -> None:
    client = call(kit.service, MODEL, rank=RANK, seed=3, user_metadata={"note": "made here"})
    info = client.get_info()
    assert (info.model_data.model_name, info.is_lora, info.lora_rank) == (MODEL, True, RANK)
    run = kit.rest.get_training_run(client.model_id).result(WAIT_SECONDS)
    assert run.user_metadata == {"note": "made here"}


@check("ServiceClient.create_lora_training_client", option="seed")
def same_seed_gives_same_run(kit: Kit, call: Call) -> None:
    clients = [call(kit.service, MODEL, rank=RANK, seed=seed) for seed in (7, 7, 8)]
    for client in clients:
        train(client, steps=2)
    same, again, other = (forward(client) for client in clients)
    np.testing.assert_array_equal(same, again)
    assert np.abs(same - other).max() > 1e-6


@check("ServiceClient.create_lora_training_client", option="train_attn")
def only_the_chosen_layers_are_trained(kit: Kit, call: Call) -> None:
    client = call(kit.service, MODEL, rank=RANK, train_attn=False, train_unembed=False)
    path = client.save_state(kit.name()).result(WAIT_SECONDS).path
    info = kit.rest.get_weights_info_by_tinker_path(path).result(WAIT_SECONDS)
    assert (info.train_mlp, info.train_attn, info.train_unembed) == (True, False, False)


@check("ServiceClient.create_lora_training_client", case="with a model the server does not have")
def unknown_model(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.service, "nobody/no-such-model", rank=RANK))


@check("ServiceClient.create_lora_training_client", case="with rank 0")
def impossible_rank(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.service, MODEL, rank=0))


@check("ServiceClient.create_lora_training_client", option="optimizer", case="dimuon")
def dimuon_optimizer(kit: Kit, call: Call) -> Refusal:
    optimizer = tinker.types.DimuonOptimizerConfig()
    return refused(lambda: call(kit.service, MODEL, rank=RANK, optimizer=optimizer))


@check("ServiceClient.create_training_client_from_state")
def continues_with_a_fresh_optimizer(kit: Kit, call: Call) -> None:
    source = kit.trainer()
    train(source, steps=3)
    path = source.save_state(kit.name()).result(WAIT_SECONDS).path
    copy = call(kit.service, path)
    assert copy.model_id != source.model_id
    np.testing.assert_array_equal(forward(copy), forward(source))
    train(source)
    train(copy)
    assert np.abs(forward(copy) - forward(source)).max() > 1e-6, "Adam's moments came along"


@check("ServiceClient.create_training_client_from_state_with_optimizer")
def continues_exactly(kit: Kit, call: Call) -> None:
    source = kit.trainer()
    train(source, steps=3)
    path = source.save_state(kit.name()).result(WAIT_SECONDS).path
    copy = call(kit.service, path)
    train(source, steps=2)
    train(copy, steps=2)
    np.testing.assert_array_equal(forward(copy), forward(source))


@check("ServiceClient.create_training_client_from_state", case="with a path that is not there")
def unknown_state(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.service, f"tinker://{kit.trained.model_id}/weights/never-saved"))


@check("ServiceClient.create_sampling_client")
def samples_the_base_model_or_saved_weights(kit: Kit, call: Call) -> None:
    base = call(kit.service, base_model=MODEL)
    saved = call(kit.service, model_path=kit.sampler_checkpoint())
    np.testing.assert_allclose(score(saved), forward(kit.trained), atol=1e-4)
    assert np.abs(score(saved) - score(base)).max() > 1e-3


@check("ServiceClient.create_sampling_client", case="with a model the server does not have")
def unknown_base_model(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.service, base_model="nobody/no-such-model"))


@check("ServiceClient.create_sampling_client", case="with a path that is not there")
def unknown_sampler_weights(kit: Kit, call: Call) -> Refusal:
    path = f"tinker://{kit.trained.model_id}/sampler_weights/never-saved"
    return refused(lambda: call(kit.service, model_path=path))


@check("ServiceClient.create_custom_loss", twin=False)
def traced_loss_stays_with_the_client(kit: Kit, call: Call) -> None:
    def half_weighted(logprobs: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
        loss = -(0.5 * logprobs * weights).sum()
        return loss, {"custom/half_weighted:sum": loss}

    handle = call(kit.service, half_weighted, input_ranks={"logprobs": 1, "weights": 1})
    assert handle.loss_id is None, "the server took the loss, but it cannot run it"
    client = kit.trainer()
    result = client.forward_backward_custom([datum()], handle).result(WAIT_SECONDS)
    expected = -0.5 * float(forward(client).sum())
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
    assert result.metrics["custom/half_weighted:sum"] == pytest.approx(expected, rel=1e-4)


@check("ServiceClient.copy_weights", twin=False)
def copies_into_the_clients_project(kit: Kit, call: Call) -> None:
    service = kit.connect(project_id=PROJECT)
    source = kit.sampler_checkpoint()
    path = call(service, source)
    assert path != source
    assert path.split("/")[-2] == "sampler_weights"
    copy = kit.service.create_sampling_client(model_path=path)
    np.testing.assert_allclose(score(copy), forward(kit.trained), atol=1e-4)


@check("ServiceClient.close", twin=False)
def ends_the_session(kit: Kit, call: Call) -> None:
    service = kit.connect()
    service.create_sampling_client(base_model=MODEL)
    assert call(service, "success", detail="checked") is None
    with pytest.raises(RuntimeError, match="closed"):
        service.create_sampling_client(base_model=MODEL)


@check("ServiceClient.close", case="as the end of a with block")
def context_manager(kit: Kit, call: Call) -> None:
    del call
    with kit.connect() as service:
        run = service.create_lora_training_client(MODEL, rank=RANK).model_id
    with pytest.raises(RuntimeError, match="closed"):
        service.create_sampling_client(base_model=MODEL)
    assert kit.rest.get_training_run(run).result(WAIT_SECONDS).training_run_id == run


@check("ServiceClient.create_rest_client", twin=False)
def gives_a_rest_client(kit: Kit, call: Call) -> None:
    assert kit.session_id in call(kit.service).list_sessions(limit=1000).result(WAIT_SECONDS).sessions


@check("ServiceClient.get_console_url", twin=False)
def is_a_url(kit: Kit, call: Call) -> None:
    assert call(kit.service).startswith("https://")


@check("ServiceClient.get_telemetry", twin=False)
def telemetry_is_accepted(kit: Kit, call: Call) -> None:
    kit.service.create_sampling_client(base_model=MODEL)
    assert call(kit.service) is not None
