from tinker_cookbook.rl.activity import Activity


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sampling_and_training_may_overlap_and_the_rest_is_waiting():
    clock = Clock()
    activity = Activity(clock)
    clock.now = 1.0  # nothing until here
    with activity.during("sampling"):
        clock.now = 3.0
        activity.begin("training")
        clock.now = 7.0
    clock.now = 9.0
    activity.end("training")
    clock.now = 10.0
    assert activity.fractions() == {
        "time/frac_sampling": 0.6,
        "time/frac_training": 0.6,
        "time/frac_waiting": 0.2,
    }


def test_two_rollouts_at_once_are_no_more_than_all_of_the_time_and_each_report_begins_anew():
    clock = Clock()
    activity = Activity(clock)
    activity.begin("sampling")
    activity.begin("sampling")
    clock.now = 4.0
    activity.end("sampling")
    assert activity.fractions()["time/frac_sampling"] == 1.0
    clock.now = 6.0
    activity.end("sampling")
    clock.now = 8.0
    assert activity.fractions() == {
        "time/frac_sampling": 0.5,
        "time/frac_training": 0.0,
        "time/frac_waiting": 0.5,
    }
    assert set(activity.fractions().values()) == {0.0}, "no time has passed"
