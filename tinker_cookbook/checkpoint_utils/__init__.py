"""Saving a run, resuming it, and what a checkpoint says about itself."""

from tinker_cookbook.checkpoint_utils.manager import CheckpointManager
from tinker_cookbook.checkpoint_utils.records import (
    CHECKPOINTS_BASE_NAME,
    CheckpointRecord,
    get_last_checkpoint,
    load_checkpoints_file,
)
from tinker_cookbook.checkpoint_utils.renderer_names import (
    RENDERER_NAME_METADATA_KEY,
    add_renderer_name_to_user_metadata,
    check_renderer_name_for_checkpoint,
    check_renderer_name_for_checkpoint_async,
    get_renderer_name_from_checkpoint,
    get_renderer_name_from_checkpoint_async,
    resolve_renderer_name_from_checkpoint_or_default,
    resolve_renderer_name_from_checkpoint_or_default_async,
)
from tinker_cookbook.checkpoint_utils.rest import rest_client
from tinker_cookbook.checkpoint_utils.resume import find_resume_checkpoint
from tinker_cookbook.checkpoint_utils.saving import save_checkpoint, save_checkpoint_async

__all__ = [
    "CHECKPOINTS_BASE_NAME",
    "RENDERER_NAME_METADATA_KEY",
    "CheckpointManager",
    "CheckpointRecord",
    "add_renderer_name_to_user_metadata",
    "check_renderer_name_for_checkpoint",
    "check_renderer_name_for_checkpoint_async",
    "find_resume_checkpoint",
    "get_last_checkpoint",
    "get_renderer_name_from_checkpoint",
    "get_renderer_name_from_checkpoint_async",
    "load_checkpoints_file",
    "resolve_renderer_name_from_checkpoint_or_default",
    "resolve_renderer_name_from_checkpoint_or_default_async",
    "rest_client",
    "save_checkpoint",
    "save_checkpoint_async",
]
