"""The model that a policy is kept near to, and what it thinks of each example: asked once, and then remembered.

The reference is `reference_model_name`, else the weights that the run started from: those of `load_checkpoint_path`, or
the base model itself, which a new adapter is equal to. What it was is written down in the folder of the run, so that a
run that resumes has the same one, whatever the policy has become.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import tinker

from tinker_cookbook.checkpoint_utils import rest_client
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.stores._jsonl import LineAppender, read_json, read_jsonl, write_json
from tinker_cookbook.stores.storage import Storage, storage_from_uri
from tinker_cookbook.utils.concurrency import gather_or_cancel

logger = logging.getLogger(__name__)

REFERENCE = "reference.json"
LOGPROBS = "reference_logprobs.jsonl"

_GONE = (404, 410)


class ReferenceConfig(Protocol):
    """The fields of a trainer's config that are read here."""

    @property
    def log_path(self) -> str: ...
    @property
    def model_name(self) -> str: ...
    @property
    def reference_model_name(self) -> str | None: ...
    @property
    def load_checkpoint_path(self) -> str | None: ...
    @property
    def ttl_seconds(self) -> int | None: ...


# --- which model ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """`identity` says which weights they are; `sampler_path` where the server has them, None for a base model."""

    identity: str
    sampler_path: str | None = None


def identity_of(config: ReferenceConfig) -> str:
    """A base model by its name, weights by their tinker:// path."""
    return config.reference_model_name or config.load_checkpoint_path or config.model_name


async def open_reference(
    config: ReferenceConfig,
    service_client: tinker.ServiceClient,
    training_client: tinker.TrainingClient,
    *,
    is_resumed: bool,
) -> tuple[tinker.SamplingClient, Reference]:
    """`training_client` has the weights to start from, unless the run `is_resumed`."""
    storage = storage_from_uri(config.log_path)
    reference = await asyncio.to_thread(_recorded, storage, identity_of(config)) if is_resumed else None
    if reference is None or not await _is_stored(service_client, reference):
        reference = await _make(config, service_client, None if is_resumed else training_client)
        await asyncio.to_thread(write_json, storage, REFERENCE, asdict(reference))
    logger.info("the reference is %s", reference.identity)
    if reference.sampler_path is None:
        return await service_client.create_sampling_client_async(base_model=reference.identity), reference
    return await service_client.create_sampling_client_async(model_path=reference.sampler_path), reference


def _recorded(storage: Storage, wanted: str) -> Reference | None:
    row = read_json(storage, REFERENCE)
    if row is None:
        return None
    recorded = Reference(**row)
    if recorded.identity != wanted:
        raise ConfigurationError(
            f"this run has been trained with the reference {recorded.identity}, and the config says {wanted}: set "
            f"reference_model_name={recorded.identity} to go on, or start in another log_path"
        )
    return recorded


async def _is_stored(service_client: tinker.ServiceClient, reference: Reference) -> bool:
    if reference.sampler_path is None:
        return True
    try:
        await rest_client(service_client).get_weights_info_by_tinker_path(reference.sampler_path)
    except tinker.APIStatusError as error:
        if error.status_code not in _GONE:
            raise
        logger.warning("%s is no longer on the server, and is made again", reference.sampler_path)
        return False
    return True


async def _make(
    config: ReferenceConfig,
    service_client: tinker.ServiceClient,
    at_start: tinker.TrainingClient | None,
) -> Reference:
    """`at_start` is the policy if it has not been trained yet: it is the reference, if no other is named."""
    identity = identity_of(config)
    if not identity.startswith("tinker://"):
        return Reference(identity)
    if "/sampler_weights/" in identity:
        return Reference(identity, sampler_path=identity)
    client = at_start if config.reference_model_name is None else None
    if client is None:
        client = await service_client.create_training_client_from_state_async(identity)
    saving = await client.save_weights_for_sampler_async("reference", ttl_seconds=config.ttl_seconds)
    return Reference(identity, sampler_path=(await saving.result_async()).path)


# --- what it thinks ---------------------------------------------------------------------------------------


class ReferenceLogprobs:
    """Of datums: the weighted sum of the logprobs that the reference gives to their targets.

    Kept in memory and in a file of the run, by a digest of the datum. Rows of the file that another reference wrote are
    passed over.
    """

    def __init__(self, client: tinker.SamplingClient, identity: str, log_path: str, at_once: int = 8):
        self._client = client
        self._identity = identity
        self._storage = storage_from_uri(log_path)
        self._appender = LineAppender(self._storage)
        self._limit = asyncio.Semaphore(at_once)
        self._known: dict[str, float] = {}
        for row in read_jsonl(self._storage, LOGPROBS):
            if row.get("reference") == identity:
                self._known |= row["logprobs"]

    async def __call__(self, data: Sequence[tinker.Datum], *, keep: bool = True) -> list[float]:
        """`keep=False` for what will not come again: nothing is remembered of it."""
        keys = [digest(datum) for datum in data]
        missing = {key: datum for key, datum in zip(keys, data, strict=True) if key not in self._known}
        values = await gather_or_cancel(self._ask(datum) for datum in missing.values())
        found = dict(zip(missing, values, strict=True))
        answers = [self._known[key] if key in self._known else found[key] for key in keys]
        if found and keep:
            row: dict[str, Any] = {"reference": self._identity, "logprobs": found}
            await asyncio.to_thread(self._write, row)
            self._known |= found
        return answers

    def _write(self, row: dict[str, Any]) -> None:
        self._appender.append(LOGPROBS, row)
        self._storage.flush()

    async def _ask(self, datum: tinker.Datum) -> float:
        async with self._limit:
            logprobs = await self._client.compute_logprobs_async(whole_sequence(datum))
        weights = datum.loss_fn_inputs["weights"].tolist()
        total = 0.0
        for logprob, weight in zip(logprobs[1:], weights, strict=True):
            if weight and logprob is None:
                raise TrainingError("the server gave no reference logprob for a token of a completion")
            total += weight * (logprob or 0.0)
        return total


def whole_sequence(datum: tinker.Datum) -> tinker.ModelInput:
    """What the datum was cut from: its inputs, and the last target."""
    return datum.model_input.append_int(int(datum.loss_fn_inputs["target_tokens"].tolist()[-1]))


def digest(datum: tinker.Datum) -> str:
    """Of the tokens, images and weights: all that the logprob of a datum depends on."""
    hashed = hashlib.sha256()
    for chunk in datum.model_input.chunks:
        if isinstance(chunk, tinker.EncodedTextChunk):
            hashed.update(np.asarray(chunk.tokens, dtype=np.int64).tobytes())
        else:
            hashed.update(repr(chunk).encode())
    for key in ("target_tokens", "weights"):
        hashed.update(key.encode())
        hashed.update(np.asarray(datum.loss_fn_inputs[key].tolist(), dtype=np.float64).tobytes())
    return hashed.hexdigest()[:32]
