"""Images on their way to a model. Needs Pillow, and `transformers` for the processor."""

import base64
import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import find_folder, without_variant
from tinker_cookbook.tokenizer_utils import trust_remote_code

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageProcessor", "get_image_processor", "image_to_data_uri", "resize_image"]

ImageProcessor: TypeAlias = Any


def get_image_processor(model_name: str) -> ImageProcessor | None:
    """What the model's own preprocessing does to images; None for Inkling, which takes them as they are."""
    name = without_variant(model_name)
    return None if name.startswith("thinkingmachines/Inkling") else _load(name, trust_remote_code())


@functools.cache
def _load(name: str, trust: bool) -> ImageProcessor:
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(find_folder(name) or name), trust_remote_code=trust)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no image processor for {name}: name a folder that has its preprocessor_config.json, or a model of the "
            f"hub that takes images ({error})"
        ) from error


def image_to_data_uri(image: "Image | str") -> str:
    """A JPEG inside a URI. A data URI is returned as it is; a path or file:// URI is read; the web is not."""
    if isinstance(image, str) and image.startswith("data:"):
        return image
    picture = _open(image) if isinstance(image, str) else image
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _open(path_or_uri: str) -> "Image":
    from PIL import Image

    parts = urlsplit(path_or_uri)
    if parts.scheme in ("http", "https"):
        raise ConfigurationError(f"{path_or_uri} is on the web: download it and give the path of the file")
    return Image.open(Path(unquote(parts.path)) if parts.scheme == "file" else Path(path_or_uri))


def resize_image(image: "Image", max_size: int) -> "Image":
    """The same picture with its longer side at most `max_size`. Never larger than it was."""
    from PIL import Image

    longest = max(image.size)
    if longest <= max_size:
        return image
    width, height = (max(1, round(side * max_size / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)
