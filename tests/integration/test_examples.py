"""Every example runs as its first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, timeout_s: float = 60.0) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_slow_receiver_of_the_flow_control_example_holds_the_sender_at_its_limit() -> None:
    output = run("channel_flow_control.py", "--messages", "400", "--limit", "50")
    assert "400 messages" in output
    assert "each once and in order: True" in output
    assert "never had more than 50 unanswered" in output
