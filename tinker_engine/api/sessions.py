"""Client configuration, sessions, telemetry, capabilities."""

from datetime import UTC, datetime

from starlette.responses import Response

from tinker_engine.api.auth import Access
from tinker_engine.api.http import Call, Handler, answer
from tinker_engine.errors import InputError
from tinker_engine.model.spec import ModelSpec
from tinker_engine.training.own_losses import OWN_LOSSES

# What the SDK is told: requests come in order and in one piece, answers are fetched as soon as they are there.
CLIENT_CONFIG = {
    "pjwt_auth_enabled": True,
    "parallel_fwdbwd_chunks": False,
    "fwdbwd_max_chunk_len": 1_000_000,
    "fwdbwd_max_chunk_bytes_count": 256_000_000,
    "fwdbwd_dispatch_bytes_semaphore_size": 2_000_000_000,
    "inflight_response_bytes_semaphore_size": 1_000_000_000,
    "sample_dispatch_bytes_semaphore_size": 1_000_000_000,
    "proto_compress_fwdbwd": False,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
    "create_model_via_load_weights": False,
    "sample_join_sampling_session": True,
    # 0.19 to 0.24 ask for these
    "proto_write_fwdbwd": True,
    "fwd_via_fwdbwd": True,
}


async def client_config(call: Call) -> Response:
    return answer(CLIENT_CONFIG | {"use_pyqwest_transport": call.engine.settings.compiled_client})


async def dynamic_config(call: Call) -> Response:
    return answer(
        {"refresh_interval_sec": 300, "sample_cancel_enabled": True, "sample_cancel_max_batch_size": 64}
    )


def token(access: Access) -> Handler:
    async def handle(call: Call) -> Response:
        return answer({"jwt": access.token(call.owner)})

    return handle


async def key_details(call: Call) -> Response:
    details = {"org_details": {"name": "local"}, "user_details": {"email": f"{call.owner}@localhost"}}
    return answer({"key_id": 1, "name": call.owner, "note": "", "details": details})


async def forget_key(call: Call) -> Response:
    raise InputError("key", "cannot be revoked over the network; take it out of the server's key file")


async def capabilities(call: Call) -> Response:
    models = call.engine.settings.models
    return answer(
        {
            "supported_models": [
                {
                    "model_name": name,
                    "max_context_length": ModelSpec.from_folder(folder).max_context,
                    "trainable": True,
                    "sampleable": True,
                }
                for name, folder in models.items()
            ],
            "losses": list(OWN_LOSSES),  # the SDK's own type passes this over
        }
    )


async def create_session(call: Call) -> Response:
    fields = call.json()
    details = {
        name: fields.values.get(name)
        for name in ("tags", "user_metadata", "sdk_version", "project_id", "display_name")
        if fields.has(name)
    }
    session = await call.engine.create_session(call.owner, details)
    return answer({"session_id": session.id, "type": "create_session"})


async def heartbeat(call: Call) -> Response:
    session = call.engine.session(call.json().text("session_id"), call.owner)
    session.seen = datetime.now(UTC).timestamp()
    return answer({"type": "session_heartbeat"})


async def finish_session(call: Call) -> Response:
    session = call.engine.session(call.path["session"], call.owner)
    reason = call.json().optional_nested("reason")
    await call.engine.finish_session(session, reason.text("type", "finished") if reason else "finished")
    return answer({})


async def telemetry(call: Call) -> Response:
    """Taken and dropped: what a client does is nobody else's business."""
    return answer({"status": "accepted"})


async def list_sessions(call: Call) -> Response:
    offset, limit = call.page(20)
    mine = [session for session in call.engine.sessions.values() if session.owner == call.owner]
    mine.sort(key=lambda session: -session.created)
    return answer({"sessions": [session.id for session in mine[offset : offset + limit]]})


async def get_session(call: Call) -> Response:
    engine = call.engine
    session = engine.session(call.path["session"], call.owner)
    return answer(
        {
            "training_run_ids": [
                run.id for run in engine.training.runs.values() if run.session_id == session.id
            ],
            "sampler_ids": [s.id for s in engine.sampling.samplers.values() if s.session_id == session.id],
            "user_metadata": session.details.get("user_metadata"),
            "display_name": session.details.get("display_name"),
        }
    )
