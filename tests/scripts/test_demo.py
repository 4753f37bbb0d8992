import os
import subprocess
import sys

import pytest

from scripts import demo

DEMO = """
from scripts import demo
demo.STEPS, demo.TESTED = 30, 30
raise SystemExit(demo.main())
"""


@pytest.mark.long
def test_the_demo_teaches_a_style_in_a_few_steps(tmp_path):
    """As `make demo` runs it: a process of its own, which starts its engine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}
    environment["TINKER_ENGINE_HOME"] = str(tmp_path)
    ran = subprocess.run([sys.executable, "-c", DEMO], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    shares = next(line for line in ran.stdout.splitlines() if line.startswith("  in the new style and true"))
    before, after = (int(share.rstrip("%")) for share in shares.split()[-2:])
    assert before == 0
    assert after >= 80
    gap = ran.stdout.rstrip().rpartition(" ")[2]
    assert float(gap) < 1e-4


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
