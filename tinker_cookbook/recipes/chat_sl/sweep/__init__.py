"""Many runs of one recipe over a grid of settings.

    from tinker_cookbook.recipes.chat_sl import sweep
    from tinker_cookbook.recipes.chat_sl.train import CLIConfig, cli_main

    table = sweep.run(cli_main, CLIConfig(), sweep_dir="my_sweep", max_parallel=2,
                      learning_rate=[1e-3, 3e-3], lora_rank=[8, 32])

From the command line: `python -m tinker_cookbook.recipes.chat_sl.sweep --help`, and `....sweep.analyze` for a table and
a plot of what was run.
"""

from tinker_cookbook.recipes.chat_sl.sweep.points import grid
from tinker_cookbook.recipes.chat_sl.sweep.results import collect
from tinker_cookbook.recipes.chat_sl.sweep.running import run

__all__ = ["collect", "grid", "run"]
