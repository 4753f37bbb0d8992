"""Checks of `RestClient`."""

from datetime import UTC, date, datetime
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
    forward,
    prompt,
    refused,
    score,
    works_or_refused,
)
from tests.conformance.registry import check
from tests.conformance.service import PROJECT
from tests.conformance.training import fetch


def run_and_id(path: str) -> tuple[str, str]:
    """tinker://RUN/weights/NAME as RUN and weights/NAME."""
    run, _, checkpoint_id = path.removeprefix("tinker://").partition("/")
    return run, checkpoint_id


def describes_the_shared_run(kit: Kit, run: Any) -> None:
    assert (run.training_run_id, run.base_model) == (kit.trained.model_id, MODEL)
    assert (run.is_lora, run.lora_rank, run.corrupted) == (True, RANK, False)
    assert run.user_metadata == {"kind": "shared"}
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.checkpoint_type == "training"


@check("RestClient.get_training_run")
def describes_a_run(kit: Kit, call: Call) -> None:
    kit.checkpoint()
    describes_the_shared_run(kit, call(kit.rest, kit.trained.model_id))


@check("RestClient.get_training_run", case="of a run that is not there")
def unknown_run(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.rest, "no-such-run:train:0"))


@check("RestClient.get_training_run_by_tinker_path")
def finds_the_run_of_a_checkpoint(kit: Kit, call: Call) -> None:
    describes_the_shared_run(kit, call(kit.rest, kit.checkpoint()))


@check("RestClient.list_training_runs")
def pages_through_runs(kit: Kit, call: Call) -> None:
    made = [kit.trainer().model_id for _ in range(3)]
    first = call(kit.rest, limit=2, offset=0)
    second = call(kit.rest, limit=2, offset=2)
    ids = [run.training_run_id for page in (first, second) for run in page.training_runs]
    assert len(set(ids)) == 4 or first.cursor.total_count < 4
    assert (first.cursor.limit, first.cursor.offset, second.cursor.offset) == (2, 0, 2)
    everything = call(kit.rest, limit=1000)
    assert everything.cursor.total_count == len(everything.training_runs)
    assert set(made) <= {run.training_run_id for run in everything.training_runs}


@check("RestClient.list_checkpoints")
def lists_all_kinds_of_a_run(kit: Kit, call: Call) -> None:
    paths = {kit.checkpoint(): "training", kit.sampler_checkpoint(): "sampler"}
    found = {entry.tinker_path: entry for entry in call(kit.rest, kit.trained.model_id).checkpoints}
    for path, kind in paths.items():
        assert (found[path].checkpoint_type, found[path].public) == (kind, False)
        assert found[path].checkpoint_id == run_and_id(path)[1]
        assert found[path].expires_at is None


@check("RestClient.list_user_checkpoints")
def pages_newest_first(kit: Kit, call: Call) -> None:
    made = [kit.checkpoint() for _ in range(3)]
    pages = [call(kit.rest, limit=2, offset=offset) for offset in (0, 2)]
    entries = [entry for page in pages for entry in page.checkpoints]
    assert [entry.tinker_path for entry in entries[:3]] == made[::-1]
    assert [entry.time for entry in entries] == sorted((one.time for one in entries), reverse=True)
    assert (pages[1].cursor.offset, pages[1].cursor.limit) == (2, 2)
    assert pages[0].cursor.total_count >= 3


@check("RestClient.delete_checkpoint")
def deleted_is_gone(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    call(kit.rest, *run_and_id(path))
    assert kit.listed(path) is None
    refused(lambda: kit.service.create_training_client_from_state(path))


@check("RestClient.delete_checkpoint", case="of a checkpoint that is not there")
def unknown_checkpoint(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.rest, kit.trained.model_id, "weights/never-saved"))


@check("RestClient.delete_checkpoint_from_tinker_path")
def deleted_path_is_gone(kit: Kit, call: Call) -> None:
    path = kit.sampler_checkpoint()
    call(kit.rest, path)
    assert kit.listed(path) is None
    refused(lambda: kit.service.create_sampling_client(model_path=path))


@check("RestClient.delete_checkpoint_from_tinker_path", case="while a sampler uses it")
def sampler_outlives_its_checkpoint(kit: Kit, call: Call) -> None:
    path = kit.sampler_checkpoint()
    sampler = kit.service.create_sampling_client(model_path=path)
    before = score(sampler)
    call(kit.rest, path)
    try:
        after = score(sampler)
    except tinker.TinkerError:
        return  # a clear refusal is as good
    np.testing.assert_allclose(after, before, atol=1e-5)


@check("RestClient.publish_checkpoint_from_tinker_path")
def published_is_public(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    call(kit.rest, path)
    assert kit.listed(path).public is True


@check("RestClient.unpublish_checkpoint_from_tinker_path")
def unpublished_is_private(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    kit.rest.publish_checkpoint_from_tinker_path(path).result(WAIT_SECONDS)
    call(kit.rest, path)
    assert kit.listed(path).public is False


@check("RestClient.set_checkpoint_ttl_from_tinker_path")
def ttl_is_set_and_removed(kit: Kit, call: Call) -> None:
    path = kit.checkpoint()
    call(kit.rest, path, 7200)
    left = kit.listed(path).expires_at - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(7200, abs=120)
    call(kit.rest, path, None)
    assert kit.listed(path).expires_at is None


@check("RestClient.set_checkpoint_ttl_from_tinker_path", case="with a time in the past")
def ttl_in_the_past(kit: Kit, call: Call) -> Refusal:
    path = kit.checkpoint()
    return refused(lambda: call(kit.rest, path, -1))


@check("RestClient.get_weights_info_by_tinker_path", twin=False)
def describes_weights(kit: Kit, call: Call) -> None:
    info = call(kit.rest, kit.checkpoint())
    assert (info.base_model, info.is_lora, info.lora_rank) == (MODEL, True, RANK)
    assert (info.train_mlp, info.train_attn, info.train_unembed) == (True, True, True)


@check("RestClient.get_external_weights_urls")
def urls_can_be_fetched(kit: Kit, call: Call) -> None:
    path = kit.trained.save_weights_external(kit.name()).result(WAIT_SECONDS).path
    answer = call(kit.rest, path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(answer.urls)
    assert all(len(fetch(url)) > 0 for url in answer.urls.values())
    assert answer.expires > datetime.now(UTC)


@check("RestClient.copy_weights")
def copy_is_a_checkpoint_of_its_own(kit: Kit, call: Call) -> None:
    source = kit.sampler_checkpoint()
    path = call(kit.rest, source, PROJECT)
    assert run_and_id(path)[0] != run_and_id(source)[0]
    kit.rest.delete_checkpoint_from_tinker_path(source).result(WAIT_SECONDS)
    copy = kit.service.create_sampling_client(model_path=path)
    np.testing.assert_allclose(score(copy), forward(kit.trained), atol=1e-4)


@check("RestClient.copy_weights", option="ttl_seconds")
def copy_expires(kit: Kit, call: Call) -> None:
    path = call(kit.rest, kit.checkpoint(), PROJECT, ttl_seconds=7200)
    left = kit.listed(path).expires_at - datetime.now(UTC)
    assert left.total_seconds() == pytest.approx(7200, abs=120)


@check("RestClient.get_session")
def lists_runs_and_samplers(kit: Kit, call: Call) -> None:
    kit.sampler.sample(prompt(), 1, tinker.SamplingParams(max_tokens=1)).result(WAIT_SECONDS)
    session = call(kit.rest, kit.session_id)
    assert kit.trained.model_id in session.training_run_ids
    assert len(session.sampler_ids) >= 1
    if hasattr(session, "user_metadata"):  # not in the oldest versions
        assert session.user_metadata == {"made_by": "conformance"}


@check("RestClient.list_sessions")
def pages_through_sessions(kit: Kit, call: Call) -> None:
    assert kit.session_id in call(kit.rest, limit=1000).sessions
    assert len(call(kit.rest, limit=1).sessions) == 1


@check("RestClient.get_sampler")
def describes_a_sampler(kit: Kit, call: Call) -> None:
    path = kit.sampler_checkpoint()
    kit.service.create_sampling_client(model_path=path)
    ids = kit.rest.get_session(kit.session_id).result(WAIT_SECONDS).sampler_ids
    samplers = [call(kit.rest, one) for one in ids]
    assert {sampler.base_model for sampler in samplers} == {MODEL}
    assert path in {sampler.model_path for sampler in samplers}


@check("RestClient.whoami", twin=False)
def says_who(kit: Kit, call: Call) -> Refusal | None:
    try:
        assert call(kit.rest).user_urn
    except RuntimeError as error:  # raised by the SDK itself: a plain key has no name in it
        return Refusal(type(error).__name__, str(error))
    return None


@check("RestClient.assign_session_project")
def moves_a_session(kit: Kit, call: Call) -> Refusal | None:
    return works_or_refused(lambda: call(kit.rest, kit.session_id, PROJECT))[1]


@check("RestClient.search_sessions")
def finds_a_session(kit: Kit, call: Call) -> Refusal | None:
    request = tinker.types.SessionSearchRequest(session_id=kit.session_id)
    page, refusal = works_or_refused(lambda: call(kit.rest, request))
    assert refusal or [one.session_id for one in page.sessions] == [kit.session_id]
    return refusal


@check("RestClient.export_session_trace")
def trace_can_be_fetched(kit: Kit, call: Call) -> Refusal | None:
    url, refusal = works_or_refused(lambda: call(kit.rest, kit.session_id))
    assert refusal or len(fetch(url)) > 0
    return refusal


@check("RestClient.get_audit_log", twin=False)
def no_audit(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.rest, day=date(2026, 1, 1)))


@check("RestClient.get_audit_log_async", twin=False)
def no_audit_from_a_loop(kit: Kit, call: Call) -> Refusal:
    try:
        return refused(lambda: call(kit.rest, day=date(2026, 1, 1)))
    except AssertionError as error:  # the SDK asserts that only its own loop gets here
        if "incorrect event loop" not in str(error):
            raise
        return Refusal(type(error).__name__, f"{error} (raised by the SDK before it asks the server)")


@check("RestClient.get_billing_usage")
def no_bill(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.rest, "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"))


@check("RestClient.get_current_checkpoint_storage_usage")
def no_bill_for_storage(kit: Kit, call: Call) -> Refusal:
    return refused(lambda: call(kit.rest))


@check("RestClient.get_checkpoint_archive_url")
def archive_can_be_fetched(kit: Kit, call: Call) -> Refusal | None:
    answer, refusal = works_or_refused(lambda: call(kit.rest, *run_and_id(kit.checkpoint())))
    assert refusal or len(fetch(answer.url)) > 0
    return refusal


@check("RestClient.get_checkpoint_archive_url_from_tinker_path")
def archive_of_a_path_can_be_fetched(kit: Kit, call: Call) -> Refusal | None:
    answer, refusal = works_or_refused(lambda: call(kit.rest, kit.checkpoint()))
    assert refusal or len(fetch(answer.url)) > 0
    return refusal


@check("RestClient.get_telemetry", twin=False)
def needs_no_session(kit: Kit, call: Call) -> None:
    call(kit.rest)  # None or not: a client without a session has nothing to report
