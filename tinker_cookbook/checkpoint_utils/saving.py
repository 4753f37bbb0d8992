"""One checkpoint: ask for it, wait for it, write it down."""

from dataclasses import dataclass
from typing import Any, Literal

import tinker

from tinker_cookbook.checkpoint_utils._blocking import blocking
from tinker_cookbook.stores.training_store import TrainingRunStore

Kind = Literal["state", "sampler", "both"]
LoopState = dict[str, Any]  # where to go on, and what else belongs in the record


@dataclass(frozen=True)
class Saving:
    """A checkpoint that was asked for. It holds the weights of that moment, whatever is trained afterwards."""

    name: str
    futures: dict[str, tinker.APIFuture[Any]]  # by the key of the path in the record

    @classmethod
    async def ask(
        cls, training_client: tinker.TrainingClient, name: str, kind: Kind, ttl_seconds: int | None
    ) -> "Saving":
        futures: dict[str, tinker.APIFuture[Any]] = {}
        if kind in ("state", "both"):
            futures["state_path"] = await training_client.save_state_async(name, ttl_seconds=ttl_seconds)
        if kind in ("sampler", "both"):
            futures["sampler_path"] = await training_client.save_weights_for_sampler_async(
                name, ttl_seconds=ttl_seconds
            )
        return cls(name, futures)

    async def record(self, store: TrainingRunStore, loop_state: LoopState) -> dict[str, str]:
        """Wait until the server has it, and only then write it down."""
        paths = {key: (await future.result_async()).path for key, future in self.futures.items()}
        await store.awrite_checkpoint({"name": self.name, **loop_state, **paths})
        return paths


async def save_checkpoint_async(
    training_client: tinker.TrainingClient,
    name: str,
    log_path: str,
    loop_state: LoopState,
    kind: Kind = "state",
    ttl_seconds: int | None = None,
    store: TrainingRunStore | None = None,
) -> dict[str, str]:
    """Save and write down where to go on: `loop_state["batch"]` is the next batch to run.

    Returns the paths on the server, as `state_path` and `sampler_path`.
    """
    saving = await Saving.ask(training_client, name, kind, ttl_seconds)
    return await saving.record(store or TrainingRunStore.from_uri(log_path), loop_state)


save_checkpoint = blocking(save_checkpoint_async)
