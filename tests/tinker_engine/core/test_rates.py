from tinker_engine.core.rates import WINDOW_SECONDS, Rates


def test_without_reports_nothing_is_fast():
    assert set(Rates().at(5.0).values()) == {0.0}


def test_a_rate_is_what_was_done_over_the_time_it_took():
    rates = Rates()
    rates.add(0.0, {})
    rates.add(4.0, {"trained_tokens": 400, "sampled_tokens": 40, "decode_steps": 10, "decode_rows": 80})
    assert rates.at(4.0) == {
        "trained_tokens": 100.0,
        "sampled_tokens": 10.0,
        "prompt_tokens": 0.0,
        "batch": 8.0,
    }


def test_only_the_last_seconds_count():
    rates = Rates()
    for second in range(31):
        rates.add(float(second), {"trained_tokens": 10 * second + (1000 if second > 5 else 0)})
    assert rates.at(30.0)["trained_tokens"] == 10.0


def test_an_engine_that_is_idle_slows_down_to_zero():
    rates = Rates()
    rates.add(0.0, {})
    rates.add(2.0, {"trained_tokens": 100})
    assert rates.at(2.0)["trained_tokens"] == 50.0
    assert rates.at(8.0)["trained_tokens"] == 12.5
    assert rates.at(2.0 + WINDOW_SECONDS)["trained_tokens"] == 0.0


def test_counters_that_start_again_are_another_process():
    rates = Rates()
    rates.add(0.0, {"trained_tokens": 500})
    rates.add(1.0, {"trained_tokens": 0})
    rates.add(3.0, {"trained_tokens": 20})
    assert rates.at(3.0)["trained_tokens"] == 10.0
