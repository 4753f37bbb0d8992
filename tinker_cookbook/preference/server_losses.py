"""Preference losses that a server computes itself, in one request.

`forward_backward_custom` takes two: a forward pass, the loss here, and its gradient as weights of a second pass. A
server that has the loss needs the datums and what the reference says of them. `tinker_engine` has DPO; a server that
says nothing of losses has none.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import tinker
from tinker import types

logger = logging.getLogger(__name__)

_PREFIX = "tinker_engine/"
_CAPABILITIES = "/api/v1/get_server_capabilities"


async def losses_on_server(service_client: tinker.ServiceClient) -> frozenset[str]:
    """Names, as in `losses.LOSSES`, of the losses that `pair_datums` and `loss_config` can be sent for.

    `get_server_capabilities` of the SDK drops the fields it does not know, so its answer is read as it came, over the
    SDK's connection. An SDK that has none like this, or cannot name such a loss, offers nothing.
    """
    try:
        from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

        holder = service_client.holder
    except (ImportError, AttributeError) as error:
        logger.info("losses are computed here: the server cannot be asked for its own (%s)", error)
        return frozenset()
    if "custom" not in get_args(types.LossFnType):
        return frozenset()

    async def ask() -> Mapping[str, Any]:
        with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
            answer = await client.get(_CAPABILITIES, cast_to=object)
        return answer if isinstance(answer, Mapping) else {}

    async def ask_with_retries() -> Mapping[str, Any]:
        return await holder.execute_with_retries(ask)

    answer = await holder.run_coroutine_threadsafe(ask_with_retries())
    return frozenset(
        name.removeprefix(_PREFIX) for name in answer.get("losses", ()) if name.startswith(_PREFIX)
    )


def loss_config(loss: str, options: Mapping[str, float], num_pairs: int) -> dict[str, float | str]:
    """Options of `forward_backward(data, "custom", ...)`.

    The server sums over the pairs it is sent. The scale makes that the mean over all `num_pairs` of the step, also
    where the SDK sends the step in several requests.
    """
    return {"loss_id": _PREFIX + loss, **options, "scale": 1.0 / num_pairs}


def pair_datums(data: Sequence[tinker.Datum], reference: Sequence[float]) -> list[tinker.Datum]:
    """Datums chosen, rejected, chosen, rejected … with the sums of the reference's logprobs beside them.

    The server asks for the reference's logprob of every target, and only their weighted sum counts: all of it stands at
    the first target that has a weight.
    """
    return [
        tinker.Datum(
            model_input=datum.model_input,
            loss_fn_inputs={
                "target_tokens": datum.loss_fn_inputs["target_tokens"],
                "weights": datum.loss_fn_inputs["weights"],
                "reference_logprobs": _at_first_weight(datum.loss_fn_inputs["weights"], total),
            },
        )
        for datum, total in zip(data, reference, strict=True)
    ]


def _at_first_weight(weights: tinker.TensorData, total: float) -> tinker.TensorData:
    values = [float(weight) for weight in weights.tolist()]
    first = next((i for i, weight in enumerate(values) if weight), None)
    logprobs = [0.0] * len(values)
    if first is not None:
        logprobs[first] = total / values[first]
    return tinker.TensorData(data=logprobs, dtype="float32", shape=[len(values)])
