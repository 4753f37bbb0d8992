"""Sampling sessions and requests to sample."""

from starlette.responses import Response

from tinker_engine.api.http import Call, accepted, answer

MOST_SAMPLES = 4096


async def create_sampling_session(call: Call) -> Response:
    fields = call.json()
    sampler = await call.engine.create_sampler(
        call.owner,
        fields.text("session_id"),
        fields.integer("sampling_session_seq_id", least=0),
        fields.optional_text("base_model"),
        fields.optional_text("model_path"),
    )
    return answer({"sampling_session_id": sampler.id, "type": "create_sampling_session"})


async def join_sampling_session(call: Call) -> Response:
    counter = await call.engine.join_sampler(call.owner, call.json().text("sampling_session_id"))
    return answer({"client_counter": counter})


async def sample(call: Call) -> Response:
    """What the request asks for is checked by the worker, which knows the model; what it is, here."""
    fields = call.json()
    count = fields.integer("num_samples", 1, least=1, most=MOST_SAMPLES)
    op = await call.engine.sample(
        call.owner, fields.text("sampling_session_id"), fields.integer("seq_id", least=0), call.body
    )
    return accepted(op, sample_sequence_ids=[f"{op.request_id}:{i}" for i in range(count)])


async def get_sampler(call: Call) -> Response:
    sampler = call.engine.sampling.find(call.path["sampler"], call.owner)
    return answer(
        {"sampler_id": sampler.id, "base_model": sampler.base_model, "model_path": sampler.model_path}
    )
