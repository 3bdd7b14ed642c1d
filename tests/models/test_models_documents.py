"""The blocks of docs/models.md and the examples run, and say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "models.md").read_text()


def test_the_blocks_run_and_print_the_table(capsys):
    namespace: dict[str, object] = {}
    for block in re.findall(r"```py\n(.*?)```", PAGE, re.S):
        exec(compile(block, "models.md", "exec"), namespace)
    printed = capsys.readouterr().out
    table = re.search(r"```\n(parameter.*?)```", PAGE, re.S)
    assert table is not None
    assert [line.rstrip() for line in table[1].splitlines()] == [
        line.rstrip()
        for line in printed.splitlines()
        if line.startswith(("parameter", "---")) or re.match(r"\d\.\w+  ", line)
    ]
    assert "the import is exact" in printed


def test_the_quoted_refusal():
    quoted = re.search(r"```\nBuildError: (.*?)```", PAGE, re.S)
    assert quoted is not None
    messages = (Path(__file__).parent / "refused.txt").read_text()
    assert " ".join(quoted[1].split()) in " ".join(messages.split())


EXAMPLES = {
    "digits_cnn.py": r"400 digits after 400: 0\.89",
    "text_encoder.py": r"accuracy on 40: 0\.[6-9]",
}


@pytest.mark.parametrize("script", EXAMPLES)
def test_examples(script):
    command = [sys.executable, str(ROOT / "examples" / "models" / script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert re.search(EXAMPLES[script], done.stdout)
