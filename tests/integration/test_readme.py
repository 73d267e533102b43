"""The README's code runs as it stands, block after block."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_code_of_the_readme_runs(tmp_path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(_blocks()), encoding="utf-8")

    run = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "RDP" in run.stdout
    assert (tmp_path / "model.keras").exists()
    assert (tmp_path / "privacy.ledger").exists()
    assert (tmp_path / "clinic.ledger").exists()


def test_the_quick_start_is_short() -> None:
    """A newcomer reads thirty lines of code, not more."""
    lines = [line for line in _blocks()[0].splitlines() if line.strip()]

    assert len(lines) <= 30
