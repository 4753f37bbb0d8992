import chz
import pytest

from tinker_cookbook.command_line import run_command
from tinker_cookbook.exceptions import ConfigurationError


@chz.chz
class Config:
    steps: int = 1


def test_asking_for_help_is_no_error(monkeypatch, capsys):
    assert run_command(lambda: print(chz.entrypoint(Config, argv=["--help"]))) == 0
    monkeypatch.delenv("PYTEST_VERSION")  # chz then ends the program itself
    assert run_command(lambda: print(chz.entrypoint(Config, argv=["--help"]))) == 0
    assert capsys.readouterr().out.count("steps") == 2


def test_an_argument_that_is_none_is_an_error(monkeypatch):
    monkeypatch.delenv("PYTEST_VERSION")
    with pytest.raises(SystemExit) as end:
        run_command(lambda: print(chz.entrypoint(Config, argv=["stepz=3"])))
    assert end.value.code == 1


def test_what_the_user_can_mend_is_one_line(capsys):
    def fail() -> None:
        raise ConfigurationError("steps=0\nmust be at least 1")

    assert run_command(fail) == 1
    assert capsys.readouterr().err == "error: steps=0 must be at least 1\n"
