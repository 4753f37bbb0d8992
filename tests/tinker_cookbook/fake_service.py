"""A server of the Tinker API that computes nothing and remembers everything, in the order it was asked.

`weights` are the names of the updates that made them, so a test can say which batches a checkpoint holds. Requests of a
training client take effect in the order they are submitted, as in the SDK: also if who submitted is cancelled then.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import tinker

Weights = tuple[str, ...]


class FakeFuture:
    def __init__(self, value: Any):
        self._value = value

    async def result_async(self, timeout: float | None = None) -> Any:
        await asyncio.sleep(0)
        if isinstance(self._value, Exception):
            raise self._value
        return self._value

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


@dataclass
class FakeService:
    """Stands in for `tinker.ServiceClient`; `describe` names an update by the data it was made from."""

    model: str = "fake/model"
    rank: int = 32
    describe: Callable[[Sequence[Any]], str] = lambda data: f"{len(data)} datums"
    calls: list[str] = field(default_factory=list)
    stored: dict[str, Weights] = field(default_factory=dict)
    metadata: list[dict[str, str]] = field(default_factory=list)
    fail: dict[str, Exception] = field(default_factory=dict)  # by the name of the call
    context_window: int = 1000
    watch: Callable[[str], None] = lambda call: None  # told of every call, and of samples
    sent: list[tuple[str, dict[str, Any] | None, Sequence[Any]]] = field(default_factory=list)
    adam: list[Any] = field(default_factory=list)
    asked: list[tinker.SamplingParams] = field(default_factory=list)  # of samplers

    def call(self, name: str, detail: str = "") -> None:
        self.calls.append(f"{name} {detail}".strip())
        self.watch(self.calls[-1])
        if name in self.fail:
            raise self.fail.pop(name)

    def create_rest_client(self) -> "FakeRest":
        return FakeRest(self)

    async def get_server_capabilities_async(self) -> Any:
        model = SimpleNamespace(model_name=self.model, max_context_length=self.context_window)
        return SimpleNamespace(supported_models=[model])

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> "FakeSamplingClient":
        self.call("sampler", str(model_path or base_model))
        return FakeSamplingClient(self, ())

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> "FakeTrainingClient":
        self.call("create", f"{base_model} rank {rank} seed {seed}")
        self.metadata.append(user_metadata or {})
        return FakeTrainingClient(self, ())

    async def create_training_client_from_state_async(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> "FakeTrainingClient":
        self.call("load weights", path)
        return FakeTrainingClient(self, self.stored[path])

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> "FakeTrainingClient":
        self.call("resume", path)
        return FakeTrainingClient(self, self.stored[path])


class FakeTrainingClient:
    def __init__(self, service: FakeService, weights: Weights):
        self.service = service
        self.weights = weights
        self._gradients: list[str] = []

    async def forward_backward_async(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: dict[str, Any] | None = None
    ) -> FakeFuture:
        self._gradients.append(self.service.describe(data))
        self.service.sent.append((loss_fn, loss_fn_config, data))
        self.service.call("forward_backward", self._gradients[-1])
        await asyncio.sleep(0)
        return FakeFuture(_answer(data))

    async def forward_async(self, data: Sequence[Any], loss_fn: str) -> FakeFuture:
        self.service.call("forward", f"after {len(self.weights)} updates")
        return FakeFuture(_answer(data))

    async def optim_step_async(self, params: Any) -> FakeFuture:
        gradient, self._gradients = " + ".join(self._gradients), []
        self.weights = (*self.weights, gradient)
        self.service.adam.append(params)
        self.service.call("optim_step", gradient)
        await asyncio.sleep(0)
        return FakeFuture(SimpleNamespace(metrics={}))

    async def save_state_async(self, name: str, ttl_seconds: int | None = None) -> FakeFuture:
        return self._save("save_state", f"tinker://fake/weights/{name}")

    async def save_weights_for_sampler_async(self, name: str, ttl_seconds: int | None = None) -> FakeFuture:
        return self._save("save_sampler", f"tinker://fake/sampler_weights/{name}")

    def _save(self, call: str, path: str) -> FakeFuture:
        try:
            self.service.call(call, path)
        except tinker.TinkerError as error:
            return FakeFuture(error)
        self.service.stored[path] = self.weights
        return FakeFuture(SimpleNamespace(path=path))

    async def save_weights_and_get_sampling_client_async(
        self, name: str | None = None
    ) -> "FakeSamplingClient":
        self.service.call("snapshot", f"of {len(self.weights)} updates")
        return FakeSamplingClient(self.service, self.weights)

    async def get_info_async(self) -> Any:
        return SimpleNamespace()


def _answer(data: Sequence[Any]) -> Any:
    lengths = [len(d.loss_fn_inputs["target_tokens"].data) for d in data if isinstance(d, tinker.Datum)]
    outputs = [{"logprobs": tinker.TensorData(data=[-1.0] * n, dtype="float32", shape=[n])} for n in lengths]
    return SimpleNamespace(metrics={"loss:sum": 1.0}, loss_fn_outputs=outputs)


@dataclass
class FakeSamplingClient:
    """Samples two tokens, or as many as it may, each with the logprob -1; finds any token to have -2."""

    service: FakeService
    weights: Weights

    async def sample_async(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> Any:
        self.service.asked.append(sampling_params)
        self.service.watch("sample")
        await asyncio.sleep(0)
        tokens = min(2, sampling_params.max_tokens or 2)
        sequence = SimpleNamespace(tokens=[7] * tokens, logprobs=[-1.0] * tokens, stop_reason="stop")
        return SimpleNamespace(sequences=[sequence] * num_samples)

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        return [None, *[-2.0] * (prompt.length - 1)]


@dataclass
class FakeRest:
    service: FakeService

    async def get_weights_info_by_tinker_path(self, path: str) -> Any:
        if path not in self.service.stored:
            request = httpx.Request("POST", "http://fake/api/v1/weights_info")
            raise tinker.NotFoundError("gone", response=httpx.Response(404, request=request), body=None)
        return SimpleNamespace(base_model=self.service.model, lora_rank=self.service.rank)

    async def get_training_run_by_tinker_path_async(self, path: str) -> Any:
        return SimpleNamespace(user_metadata={}, base_model=self.service.model)

    async def delete_checkpoint_from_tinker_path_async(self, path: str) -> None:
        await self.get_weights_info_by_tinker_path(path)
        self.service.call("delete", path)
        del self.service.stored[path]
