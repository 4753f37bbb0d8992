from scripts.sdk_report import Result, plain, report


def works(row: str) -> Result:
    return Result(row, "works", "", "")


def refuses(row: str, message: str = "billing: not here") -> Result:
    return Result(row, "refuses", "BadRequestError", message)


def test_a_method_and_its_twin_share_a_row_if_they_came_out_the_same() -> None:
    rows = [works("RestClient.list"), works("RestClient.list_async"), works("RestClient.whoami")]
    text = report("1.0", {"0.36.0": rows}, {})
    assert "| `list`, `_async` | works |" in text
    assert "| `list_async` |" not in text
    differing = [works("RestClient.list"), refuses("RestClient.list_async")]
    text = report("1.0", {"0.36.0": differing}, {})
    assert "| `list` | works |" in text
    assert "| `list_async` | refuses[^1] |" in text


def test_options_and_cases_stand_behind_their_method() -> None:
    names = ["sample", "score", "sample(seed=…)", "sample, with an image"]
    text = report("1.0", {"0.36.0": [works(f"SamplingClient.{name}") for name in names]}, {})
    found = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `s")]
    assert found == ["| `sample`", "| `sample(seed=…)`", "| `sample`, with an image", "| `score`"]


def test_same_refusal_is_one_note() -> None:
    rows = {version: [refuses("RestClient.bill"), refuses("RestClient.bill_async")] for version in ("1", "2")}
    text = report("1.0", rows, {})
    assert "| `bill`, `_async` | refuses[^1] | refuses[^1] |" in text
    assert text.count("[^1]: ") == 1
    assert "[^2]" not in text


def test_messages_are_the_same_in_every_run() -> None:
    first = plain(
        "no tinker://4d4d2142-6be3-46d4-8db9-991142b84ffe:train:3/weights/check-5\nfor self.request_id='r1'"
    )
    other = plain("no tinker://91aa2142-6be3-46d4-8db9-991142b84ffe:train:8/weights/check-9")
    assert first == other == "no tinker://ID:train:N/weights/NAME"


def test_an_error_that_is_sent_twice_is_shown_once() -> None:
    body = """Details: 400 - {'error': "it's billing", 'detail': "it's billing", 'category': 'user'}"""
    assert plain(body) == "Details: 400 - it's billing"
