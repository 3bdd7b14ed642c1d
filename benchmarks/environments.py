"""Virtual environments of the peers, created once under benchmarks/.envs."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["PACKAGES", "interpreters"]

FOLDER = Path(__file__).parent / ".envs"
# neural-tangents 0.6.5 does not import with the JAX that pip would choose for it.
PACKAGES = {"neural-tangents": ["neural-tangents==0.6.5", "jax==0.5.3", "jaxlib==0.5.3", "tf2jax<0.3.8"]}


def interpreters(sides: set[str]) -> dict[str, Path]:
    """The Python of each side; netsor and the plain formulas run in this one."""
    return {side: prepare(side) if side in PACKAGES else Path(sys.executable) for side in sorted(sides)}


def prepare(peer: str) -> Path:
    """The Python of a peer's environment, which is created if it is missing, incomplete or outdated."""
    folder, python = FOLDER / peer, FOLDER / peer / "bin" / "python"
    mark = folder / "installed.txt"
    wanted = "\n".join(PACKAGES[peer])
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"installing {peer} in its own environment", flush=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[peer]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{peer} could not be installed; --alone runs netsor without it\n{done.stderr[-1000:]}"
        )
    mark.write_text(wanted)
    return python
