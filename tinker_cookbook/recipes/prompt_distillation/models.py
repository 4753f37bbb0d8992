"""A model to sample from, with the renderer that it was trained with."""

import asyncio

import tinker

from tinker_cookbook import service
from tinker_cookbook.checkpoint_utils import resolve_renderer_name_from_checkpoint_or_default_async
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer


async def open_model(
    model_name: str, checkpoint: str | None, renderer_name: str | None, base_url: str | None
) -> tuple[tinker.SamplingClient, Renderer]:
    """The model itself, or what a tinker:// path of sampler weights has made of it."""
    service_client = await asyncio.to_thread(service.connect, base_url)
    name = await resolve_renderer_name_from_checkpoint_or_default_async(
        model_name=model_name,
        explicit_renderer_name=renderer_name,
        load_checkpoint_path=checkpoint,
        base_url=base_url,
    )
    tokenizer = await asyncio.to_thread(get_tokenizer, model_name)
    if checkpoint is None:
        sampling_client = await service_client.create_sampling_client_async(base_model=model_name)
    else:
        sampling_client = await service_client.create_sampling_client_async(model_path=checkpoint)
    return sampling_client, get_renderer(name, tokenizer, model_name=model_name)
