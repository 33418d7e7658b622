"""The main job: a CNN on digits over TLS gRPC with real processes, by three methods, with a table and a report.

The clients reach the server through an emulated 4G link: 10 Mbit/s up, 30 Mbit/s down, 25 ms.

Run with `make demo`, or `python examples/demo.py`.
"""

from pathlib import Path

from splitfl.cli import main

JOB = Path(__file__).parent / "digits.toml"

if __name__ == "__main__":
    methods = [part for name in ("pipar", "splitfed-v1", "fedavg") for part in ("--method", name)]
    main(["local", str(JOB), *methods, "--link", "4g", "--report", "report.html"])
