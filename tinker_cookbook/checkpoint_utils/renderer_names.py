"""Which renderer a checkpoint was trained with, so that it is sampled with the same one.

The name travels in the metadata of the training run on the server.
"""

import asyncio
import logging

import tinker

from tinker_cookbook.checkpoint_utils._blocking import blocking
from tinker_cookbook.checkpoint_utils.rest import rest_client

logger = logging.getLogger(__name__)

RENDERER_NAME_METADATA_KEY = "renderer_name"


def add_renderer_name_to_user_metadata(user_metadata: dict[str, str], renderer_name: str | None) -> None:
    """Notes the renderer in the metadata of a run, in place, so that its checkpoints tell of it."""
    if renderer_name is not None:
        user_metadata[RENDERER_NAME_METADATA_KEY] = renderer_name


async def get_renderer_name_from_checkpoint_async(
    service_client: tinker.ServiceClient, checkpoint_path: str
) -> str | None:
    """None if the run has no name recorded, or the server cannot say, which is logged."""
    try:
        run = await rest_client(service_client).get_training_run_by_tinker_path_async(checkpoint_path)
    except (tinker.TinkerError, ValueError) as error:
        logger.warning(
            "the renderer of %s is unknown, for its run cannot be read: %s", checkpoint_path, error
        )
        return None
    return (run.user_metadata or {}).get(RENDERER_NAME_METADATA_KEY)


async def resolve_renderer_name_from_checkpoint_or_default_async(
    *,
    model_name: str,
    explicit_renderer_name: str | None,
    load_checkpoint_path: str | None,
    base_url: str | None = None,
) -> str:
    """The renderer that was asked for, else that of the checkpoint, else the one recommended for the model."""
    if explicit_renderer_name is not None:
        return explicit_renderer_name
    if load_checkpoint_path is not None:
        from tinker_cookbook.service import connect

        service_client = await asyncio.to_thread(connect, base_url)
        stored = await get_renderer_name_from_checkpoint_async(service_client, load_checkpoint_path)
        if stored is not None:
            logger.info("using renderer %s, as %s was trained with it", stored, load_checkpoint_path)
            return stored
    from tinker_cookbook.model_info import get_recommended_renderer_name

    return get_recommended_renderer_name(model_name)


async def check_renderer_name_for_checkpoint_async(
    service_client: tinker.ServiceClient, checkpoint_path: str, expected_renderer_name: str | None
) -> None:
    """Warn if the checkpoint was trained with another renderer."""
    if expected_renderer_name is None:
        return
    stored = await get_renderer_name_from_checkpoint_async(service_client, checkpoint_path)
    if stored is None:
        logger.info("%s has no renderer recorded; using %s", checkpoint_path, expected_renderer_name)
    elif stored == expected_renderer_name:
        logger.info("%s was trained with the same renderer, %s", checkpoint_path, stored)
    else:
        logger.warning(
            "%s was trained with renderer %s, and this run uses %s: its prompts look different from what the model "
            "knows. Set renderer_name=%s to keep them the same.",
            checkpoint_path,
            stored,
            expected_renderer_name,
            stored,
        )


get_renderer_name_from_checkpoint = blocking(get_renderer_name_from_checkpoint_async)
resolve_renderer_name_from_checkpoint_or_default = blocking(
    resolve_renderer_name_from_checkpoint_or_default_async
)
check_renderer_name_for_checkpoint = blocking(check_renderer_name_for_checkpoint_async)
