"""A frozen base model in memory, with the one sampler that serves all its clients."""

from collections import OrderedDict
from functools import partial
from pathlib import Path

from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.model.lora import Adapter
from tinker_engine.model.lora_io import load_adapter
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.store.folders import verify


class BaseModel:
    def __init__(self, name: str, folder: Path):
        loaded = load_model(str(folder))
        self.name = name
        self.decoder = Decoder(loaded.spec, loaded.weights)
        self._new_sampler = partial(Sampler, self.decoder, loaded.tokenizer, loaded.eos_token_ids)
        self.sampler = self._new_sampler()

    def replace_sampler(self) -> None:
        """For one that failed in the middle of a step: nobody knows what its cache holds."""
        self.sampler = self._new_sampler()


class BaseModels:
    """Loaded when first needed and kept. A model that could not be loaded is tried again at the next request."""

    def __init__(self) -> None:
        self._models: dict[str, BaseModel] = {}

    def __iter__(self):
        return iter(self._models.values())

    def find(self, name: str, folder: Path) -> BaseModel:
        if name not in self._models:
            self._models[name] = BaseModel(name, folder)
        return self._models[name]


class Snapshots:
    """Frozen adapters by id, the least recently used out first. An id always means the same weights."""

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()

    def put(self, snapshot: str, adapter: Adapter) -> None:
        self._adapters[snapshot] = adapter
        self._adapters.move_to_end(snapshot)
        while len(self._adapters) > 1 and self._bytes > self._most_bytes:
            self._adapters.popitem(last=False)

    def get(self, snapshot: str, folder: Path, base: BaseModel) -> Adapter:
        adapter = self._adapters.get(snapshot)
        if adapter is None:
            verify(folder)
            adapter = load_adapter(folder, base.decoder.spec, device=base.decoder.device)
            adapter.frozen = True
        self.put(snapshot, adapter)
        return adapter

    def forget(self, snapshots: list[str]) -> None:
        for snapshot in snapshots:
            self._adapters.pop(snapshot, None)

    def __len__(self) -> int:
        return len(self._adapters)

    @property
    def _bytes(self) -> int:
        return sum(adapter.nbytes for adapter in self._adapters.values())
