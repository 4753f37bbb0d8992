import base64
import io

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.image_processing_utils import get_image_processor, image_to_data_uri, resize_image


def test_the_web_is_not_read():
    pytest.importorskip("PIL")
    with pytest.raises(ConfigurationError, match="download it"):
        image_to_data_uri("https://example.org/cat.png")


def test_a_data_uri_is_one_already():
    assert image_to_data_uri("data:image/png;base64,AAAA") == "data:image/png;base64,AAAA"


def test_inkling_takes_images_as_they_are():
    assert get_image_processor("thinkingmachines/Inkling-Small:peft:1") is None


def test_an_image_becomes_a_jpeg_wherever_it_is(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    picture = image_module.new("RGBA", (4, 2), (255, 0, 0, 255))
    path = tmp_path / "a picture.png"
    picture.save(path)
    for given in (picture, str(path), path.as_uri()):
        head, _, body = image_to_data_uri(given).partition(",")
        assert head == "data:image/jpeg;base64"
        assert image_module.open(io.BytesIO(base64.b64decode(body))).size == (4, 2)


@pytest.mark.parametrize(
    ("size", "result"), [((400, 100), (100, 25)), ((50, 20), (50, 20)), ((1000, 1), (100, 1))]
)
def test_images_shrink_and_never_grow(size, result):
    image_module = pytest.importorskip("PIL.Image")
    assert resize_image(image_module.new("RGB", size), 100).size == result
