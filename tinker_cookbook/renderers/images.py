"""Pictures as chunks of a prompt. Needs Pillow (the extra `vision`)."""

import io
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol

import tinker

from tinker_cookbook.exceptions import RendererError

if TYPE_CHECKING:
    from PIL.Image import Image

SECONDS = 30.0  # to wait for a picture on the web
MOST_BYTES = 50_000_000


class ImageProcessorProtocol(Protocol):
    """Qwen's has `get_number_of_image_patches` and `merge_size`, Kimi's `get_resize_config`."""

    merge_size: int

    def get_number_of_image_patches(self, height: int, width: int, images_kwargs: dict[str, Any]) -> int: ...


def image_to_chunk(
    image_or_str: "Image | str", image_processor: ImageProcessorProtocol
) -> tinker.types.ImageChunk:
    """A JPEG, and how many tokens it will take. What is transparent becomes white."""
    picture = _opaque(_open(image_or_str) if isinstance(image_or_str, str) else image_or_str)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG")
    tokens = _count_tokens(picture, image_processor)
    return tinker.types.ImageChunk(data=buffer.getvalue(), format="jpeg", expected_tokens=tokens)


def _open(address: str) -> "Image":
    from PIL import Image

    if not address.startswith(("http://", "https://", "data:")):
        raise RendererError(
            f"an image is a web address, a data URI or a PIL image, not {address[:80]!r}; open a file with "
            "PIL.Image.open"
        )
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        data = answer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RendererError(f"the image {address[:80]!r} has more than {MOST_BYTES:,} bytes")
    return Image.open(io.BytesIO(data))


def _opaque(image: "Image") -> "Image":
    from PIL import Image

    if image.mode not in ("RGBA", "LA", "P"):
        return image.convert("RGB")
    pixels = image.convert("RGBA")
    white = Image.new("RGBA", pixels.size, "white")
    return Image.alpha_composite(white, pixels).convert("RGB")


def _count_tokens(image: "Image", processor: Any) -> int:
    if hasattr(processor, "get_number_of_image_patches"):
        patches = processor.get_number_of_image_patches(image.height, image.width, images_kwargs={})
        return patches // processor.merge_size**2
    if hasattr(processor, "get_resize_config"):
        return processor.get_resize_config({"type": "image", "image": image})["num_tokens"]
    raise RendererError(f"{type(processor).__name__} does not say how many tokens an image takes")
