"""Draw the picture of docs/side_by_side.md: ten trained networks beside the limit."""

import re
from pathlib import Path

import matplotlib.pyplot as plt

text = (Path(__file__).parents[2] / "docs" / "side_by_side.md").read_text()
page = {}
for block in re.findall(r"```python\n(.*?)```", text, re.S):
    exec(block, page)
x, y, new, networks = (page[name] for name in ("x", "y", "new", "networks"))
figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), sharey=True, layout="constrained")
for k, (ax, time, limit) in enumerate(zip(axes, page["times"], page["limit"], strict=True)):
    ax.plot(new[:, 0], networks[:, k].T, color="0.55", lw=0.7, zorder=1)
    ax.fill_between(
        new[:, 0], limit.mean - 2 * limit.std, limit.mean + 2 * limit.std, color="C0", alpha=0.2, lw=0
    )
    ax.plot(new[:, 0], limit.mean, color="C0", lw=2.2)
    ax.plot(x[:, 0], y, "o", color="C3", ms=5)
    ax.set(title=f"{time} steps", xlabel="x", ylim=(-2.4, 2.4))
axes[0].set_ylabel("output")
figure.savefig("side_by_side.png", dpi=150)
