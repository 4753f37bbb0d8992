"""The tournament and the game against a person, as they are typed."""

import io
import json

import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.text_arena import play, tournament


def test_a_tournament_prints_a_table_and_writes_its_figures(engine, capsys, tmp_path):
    path = tmp_path / "table.json"
    tournament.main(tournament.Config(games=3, json_path=str(path)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "player",
        "opponent",
        "seat",
        "games",
        "win",
        "draw",
        "loss",
        "illegal",
        "void",
    ]
    assert [line.split()[:4] for line in lines[1:4]] == [
        ["base_model", "random", seat, games] for seat, games in (("0", "3"), ("1", "3"), ("both", "6"))
    ]
    assert len(lines) == 1 + 3 * 3
    rows = json.loads(path.read_text())
    assert [row["games"] for row in rows] == [3, 3, 6] * 3
    for row in rows:
        assert sum(row[name]["share"] for name in ("win", "draw", "loss")) == pytest.approx(1)
        low, high = row["win"]["interval"]
        assert low <= row["win"]["share"] <= high
    best = rows[-1]
    assert (best["player"], best["opponent"], best["win"]["share"]) == ("random", "optimal", 0.0)


@pytest.mark.parametrize(
    "settings", [{"players": ("random",)}, {"players": ("random", "random")}, {"games": 0}]
)
def test_tournaments_that_cannot_be(settings):
    with pytest.raises(ConfigurationError):
        tournament.Config(**settings)


CELLS = "".join(f"[{cell}]\n" for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7))


def test_a_person_who_mistypes_is_asked_again(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"[4]\nhelp\n{CELLS}"))
    play.main(play.Config(opponent="optimal"))
    out = capsys.readouterr().out
    assert "Tic-tac-toe. You are O." in out
    assert "optimal plays [" in out
    assert "no cell in square brackets in 'help'" in out
    assert "cell 4 is taken" in out
    assert out.splitlines()[-1].split(":")[0] in ("lost", "drawn")


def test_a_person_in_the_second_seat_plays_to_the_end(monkeypatch, capsys, engine):
    """The likeliest moves of a model, or illegal ones: whatever it does, the game is over in the end."""
    monkeypatch.setattr("sys.stdin", io.StringIO(CELLS))
    play.main(play.Config(opponent="base_model", seat=1, temperature=0.0))
    out = capsys.readouterr().out
    assert "base_model plays [" in out
    assert out.splitlines()[-1].split(":")[0] in ("won", "lost", "drawn")


def test_an_input_that_ends_is_said(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ConfigurationError, match="play in a terminal"):
        play.main(play.Config(opponent="random"))
