"""Draw the figures of docs/mathematics.md, from the functions that the page explains."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from tfm.model import chart
from tfm.model.attention import local
from tfm.model.attention.formula import visible_keys
from tfm.model.positions import sinusoids
from tfm.model.settings import TrainingSettings
from tfm.model.training.schedule import learning_rate

FOLDER = Path(__file__).resolve().parent / "figures"

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 690, 50, 300  # the plot area
INK = "#0969da"  # reads on a light and on a dark page


def positions() -> str:
    """Return the numbers of PE as shades, a row for each position."""
    cell, left, top = 10, 50, 40
    table = sinusoids(64, 32)
    parts = list(shades((table.T + 1) / 2, left, top, cell))
    bottom = top + 32 * cell
    for place in range(0, 65, 16):
        parts.append(chart.text(left + place * cell, bottom + 20, str(place), "middle"))
    for row in (0, 16, 31):
        parts.append(chart.text(left - 8, top + row * cell + 10, str(row), "end"))
    parts.append(chart.text(left, 25, "coordinate (down) of each position (across)", "start"))
    return chart.document(720, bottom + 35, "Sinusoidal positional encoding", parts, {})


def distance() -> str:
    """Return PE(p) . PE(p + k) against k."""
    table = sinusoids(129, 128)
    products = [(k - 64, (table[64] @ table[k]).item()) for k in range(129)]
    return curves({"product": products}, "distance k", "PE(p) · PE(p + k), width 128")


def scaling() -> str:
    """Return the variance of q . k and of q . k / sqrt(width), of normal numbers, by width."""
    torch.manual_seed(1)
    widths = [2**power for power in range(4, 11)]
    raw = []
    for width in widths:
        q, k = torch.randn(2, 4000, width).double()
        raw.append((width, (q * k).sum(1).var().item()))
    scaled = [(width, variance / width) for width, variance in raw]
    x = chart.LogAxis.over(widths, LEFT, RIGHT, base=2)
    y = chart.LogAxis.over([0.5, *(v for _, v in raw)], BOTTOM, TOP, base=4)
    return plot({"q · k": raw, "q · k / √width": scaled}, x, y, "width of a head", "variance")


def masks() -> str:
    """Return who sees whom among eight positions, by three masks."""
    N, cell, top = 8, 22, 60
    causal = visible_keys(N, N, causal=True, keys=None, device=torch.device("cpu"))
    assert causal is not None
    band = local.visible_keys(N, window=4, keys=None, device=torch.device("cpu"))[0, 0]
    shown = {"the article's": causal.T, "causal": causal, "local, w = 4": band}
    parts = []
    for i, (name, visible) in enumerate(shown.items()):
        left = 60 + 220 * i
        parts += shades(visible.double(), left, top, cell)
        parts.append(chart.text(left, top - 12, name, "start"))
    parts.append(chart.text(20, 22, "queries down, keys across; dark: may be seen", "start"))
    return chart.document(720, top + N * cell + 20, "Three masks", parts, {})


def schedule() -> str:
    """Return the learning rate of the paper's base model, and the cosine with the same peak."""
    peak = (512 * 4000) ** -0.5
    steps = range(0, 20_001, 200)
    points = {}
    for name in ("inverse_sqrt", "cosine"):
        settings = TrainingSettings(
            steps=20_000, learning_rate=peak, warmup_steps=4000, schedule=name
        )
        points[name] = [(step, 1000 * learning_rate(step, settings)) for step in steps]
    return curves(points, "step", "learning rate, thousandths")


def shades(values: torch.Tensor, left: float, top: float, cell: float) -> Iterator[str]:
    """Yield a square for each of `values`, which are from 0 to 1: the opacity of its ink."""
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            place = f'x="{left + j * cell:g}" y="{top + i * cell:g}"'
            size = f'width="{cell - 1:g}" height="{cell - 1:g}"'
            yield f'<rect {place} {size} fill="{INK}" fill-opacity="{0.06 + 0.94 * value:.2f}"/>'


def curves(points: dict[str, list[chart.Point]], across: str, up: str) -> str:
    """Return lines between linear axes."""
    values = [point for line in points.values() for point in line]
    x = chart.Axis.over([a for a, _ in values], LEFT, RIGHT)
    y = chart.Axis.over([b for _, b in values], BOTTOM, TOP)
    return plot(points, x, y, across, up)


def plot(
    points: dict[str, list[chart.Point]],
    x: chart.Axis | chart.LogAxis,
    y: chart.Axis | chart.LogAxis,
    across: str,
    up: str,
) -> str:
    """Return lines between two axes, with a legend where there is more than one."""
    colours: Sequence[chart.Colours] = (chart.BLUE, chart.ORANGE)
    classes = [f"line-{i}" for i in range(len(points))]
    parts = chart.horizontals([y.place(tick) for tick in y.ticks], LEFT, RIGHT)
    parts += [chart.text(x.place(t), BOTTOM + 22, f"{t:,g}", "middle") for t in x.ticks]
    parts += [chart.text(LEFT - 8, y.place(t) + 5, f"{t:,g}", "end") for t in y.ticks]
    parts.append(chart.text((LEFT + RIGHT) / 2, BOTTOM + 48, across, "middle"))
    parts.append(chart.text(8, 24, up, "start"))
    for i, (name, line) in enumerate(points.items()):
        parts.append(chart.line(classes[i], line, x, y))
        if len(points) > 1:
            parts += chart.key(330 + 180 * i, 24, classes[i], name)
    by_class = dict(zip(classes, colours, strict=False))
    return chart.document(WIDTH, HEIGHT, f"{up} against {across}", parts, by_class)


FIGURES: dict[str, Callable[[], str]] = {
    "positions": positions,
    "distance": distance,
    "scaling": scaling,
    "masks": masks,
    "schedule": schedule,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), "utf-8")
