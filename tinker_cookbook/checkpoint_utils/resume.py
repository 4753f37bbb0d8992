"""From where a run can go on."""

import asyncio
import logging

import tinker

from tinker_cookbook.checkpoint_utils.records import CheckpointRecord, load_checkpoints_file
from tinker_cookbook.checkpoint_utils.rest import rest_client

logger = logging.getLogger(__name__)

_GONE = (404, 410)


async def find_resume_checkpoint(
    log_dir: str, service_client: tinker.ServiceClient
) -> CheckpointRecord | None:
    """The newest record whose state the server still has; None if there is none.

    A checkpoint that expired or was deleted is passed over with a warning. Any other failure of the server or of the
    network is raised: it says nothing about the checkpoint, and starting anew would throw the run away.
    """
    records = await asyncio.to_thread(load_checkpoints_file, log_dir)
    with_state = [record for record in records if record.state_path is not None]
    rest = rest_client(service_client)
    for record in reversed(with_state):
        if await _is_stored(rest, record.state_path or ""):
            logger.info("resuming %s from checkpoint %s (%s)", log_dir, record.name, record.state_path)
            return record
        logger.warning(
            "checkpoint %s of %s is no longer on the server (%s): it expired or was deleted; trying an older one",
            record.name,
            log_dir,
            record.state_path,
        )
    if with_state:
        logger.warning(
            "no checkpoint of %s is left on the server; the run starts from the beginning", log_dir
        )
    return None


async def _is_stored(rest: tinker.RestClient, state_path: str) -> bool:
    try:
        await rest.get_weights_info_by_tinker_path(state_path)
    except tinker.APIStatusError as error:
        if error.status_code in _GONE:
            return False
        raise
    return True
