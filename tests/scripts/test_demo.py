from scripts import demo


def test_the_demo_teaches_a_style_in_a_few_steps(monkeypatch, capsys):
    monkeypatch.setattr(demo, "STEPS", 40)
    monkeypatch.setattr(demo, "TESTED", 40)
    assert demo.main() == 0
    shown = capsys.readouterr().out
    before, after = next(line for line in shown.splitlines() if "new style and true" in line).split()[-2:]
    assert before == "0%"
    assert float(after.rstrip("%")) >= 50
    assert "│ after" in shown


def test_the_chart_goes_from_top_left_to_bottom_right():
    rows = demo.chart([8.0, 4.0, 2.0, 1.0], height=4).splitlines()
    assert rows[0] == "  8.00 │█   "
    assert rows[-2] == "  2.00 │███▄"
    assert rows[-1] == "       └────"


def test_answers_stand_side_by_side():
    (question,) = demo.questions("test", 0, 1)
    shown = demo.side_by_side([question], ["one " * 20], ["two"])
    assert question.asked in shown
    assert all("│" in line or "┼" in line for line in shown.splitlines())
