"""The page and the terminal view of what is trained on."""

import json
import re

import chz
import pytest
from chz.blueprint import EntrypointHelpException

from tests.tinker_cookbook.supervised.numbers import TINY
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.supervised import viz_sft_dataset
from tinker_cookbook.supervised.viz_sft_dataset import Config, run


@pytest.fixture
def dataset(tmp_path) -> str:
    rows = [{"prompt": f"<b>{i}</b>?", "completion": f"yes {i}"} for i in range(5)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_page_opens_without_any_other_file(dataset, tmp_path, capsys):
    page = tmp_path / "out.html"
    run(Config(model_name=TINY, dataset=dataset, page=str(page), num_examples=3))
    html = page.read_text()
    assert html.lstrip().lower().startswith("<!doctype html>")
    assert not re.search(r"""(src|href)=["']?https?:""", html)
    assert html.count('class="lt-tokens"') == 3
    assert "<b>" not in html.replace("</b>", ""), "the text of the data is escaped"
    coloured = "".join(re.findall(r'class="lt-tok p10"[^>]*>([^<]*)', html))
    assert coloured.count("yes ") == 3, "what is learned has the full colour"
    assert "?" not in coloured
    assert "wrote 3 examples" in capsys.readouterr().out


def test_the_terminal_shows_what_is_learned_in_green(dataset, capsys):
    run(Config(model_name=TINY, dataset=dataset, num_examples=2))
    shown = capsys.readouterr().out
    assert shown.count("====== example") == 2
    assert re.search(r"\x1b\[32myes \d", shown)


def test_a_builder_can_be_named(capsys):
    path = "tests.tinker_cookbook.supervised.numbers:SumsBuilder"
    run(Config(model_name=TINY, dataset_path=path, num_examples=1))
    assert "It is " in capsys.readouterr().out


def test_an_unknown_builder_is_one_sentence():
    with pytest.raises(
        ConfigurationError, match=r"no builder NoSuchBuilder; name a file with dataset=my\.jsonl"
    ):
        run(Config(model_name=TINY, dataset_path="NoSuchBuilder"))


def test_help_has_a_line_for_every_field(capsys):
    with pytest.raises((SystemExit, EntrypointHelpException)):  # the latter under pytest
        chz.entrypoint(viz_sft_dataset.Config, argv=["--help"])
    shown = capsys.readouterr().out
    assert all(re.search(rf"^  {name} .*\w", shown, re.M) for name in chz.chz_fields(Config))
