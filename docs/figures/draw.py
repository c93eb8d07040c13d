"""Draws the figures of docs/method.md from the hash itself: `python docs/figures/draw.py`."""

from __future__ import annotations

from pathlib import Path

import torch

from fetchsgd import CountSketch

HERE = Path(__file__).parent
DIM, COLS, LARGE = 12, 4, 4
VECTOR = [1, -1, 9, 0, 2, -1, 1, 0, -7, 1, -2, 1]
STYLE = """<style>
    text { fill: #1f2430 } .soft { fill: #5b6472 } .box { fill: #f4f6fa; stroke: #8a94a6 }
    .plus { stroke: #0072b2; fill: none }
    .minus { stroke: #d55e00; fill: none; stroke-dasharray: 5 3 }
    .hot { fill: #0072b2; stroke: #0072b2 } .on { fill: #fff }
    @media (prefers-color-scheme: dark) {
      text { fill: #e8ebf2 } .soft { fill: #a7b0c0 } .box { fill: #232936; stroke: #7d8799 }
      .plus { stroke: #56b4e9 } .minus { stroke: #e69f00 } .hot { fill: #56b4e9; stroke: #56b4e9 }
      .on { fill: #10131a }
    }
  </style>"""


def sketch_of(round: int, seed: int) -> CountSketch:
    return CountSketch(DIM, rows=1, cols=COLS, seed=seed, block=1, hash="permutation").for_round(
        round
    )


def places(sketch: CountSketch) -> list[tuple[int, int]]:
    """The cell and the sign of each coordinate, read off the sketches of unit vectors."""
    tables = sketch.sketch(torch.eye(DIM))[:, 0]
    cells = tables.abs().argmax(dim=1)
    return [(int(cell), int(tables[i, cell])) for i, cell in enumerate(cells)]


def text(x: float, y: float, words: object, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, words: object, hot: bool = False) -> str:
    kind = "box hot" if hot else "box"
    rect = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="30" rx="5"/>'
    return rect + text(x + width / 2, y + 20, words, "on" if hot else "")


def number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def middle(x: float, width: float, cell: int) -> float:
    """Where the lines of a cell end."""
    return x + (cell + 0.5) * width / COLS


def lines(sketch: CountSketch, x: float, width: float, top: float, bottom: float) -> list[str]:
    """From each coordinate to its cell, straight for plus and broken for minus."""
    drawn = []
    for i, (cell, sign) in enumerate(places(sketch)):
        start = x + (i + 0.5) * width / DIM
        drawn.append(
            f'<path class="{"plus" if sign > 0 else "minus"}" stroke-width="1.8" '
            f'd="M{start:.1f} {top} L{middle(x, width, cell):.1f} {bottom}"/>'
        )
    return drawn


def svg(width: int, height: int, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14">\n  {STYLE}\n  '
        + "\n  ".join(parts)
        + "\n</svg>\n"
    )


def numbers(values: list[float], x: float, width: float, y: float) -> list[str]:
    """A row of numbers, the large ones marked."""
    step = width / DIM
    return [
        box(x + i * step + 3, y, step - 6, number(value), abs(value) > LARGE)
        for i, value in enumerate(values)
    ]


def one_sketch(seed: int) -> str:
    """A vector, its sketch, and what is read back of it."""
    sketch = sketch_of(0, seed)
    table = sketch.sketch(torch.tensor(VECTOR, dtype=torch.float32))
    x, width = 150, 640
    words = (
        (40, "a gradient", "12 numbers"),
        (160, "its sketch", "4 cells"),
        (280, "estimates", "own cell, own sign"),
    )
    parts = []
    for y, name, about in words:
        parts += [text(135, y, name, anchor="end"), text(135, y + 18, about, "soft", "end")]
    parts += numbers(VECTOR, x, width, 30)
    parts += lines(sketch, x, width, 62, 148)
    for cell, value in enumerate(table[0].tolist()):
        parts.append(box(middle(x, width, cell) - 40, 150, 80, number(value)))
    parts += lines(sketch, x, width, 268, 182)
    parts += numbers(sketch.estimate(table).tolist(), x, width, 270)
    legend = "added up with the sign of the line: straight +, broken −"
    return svg(820, 345, [*parts, text(x + width / 2, 328, legend, "soft")])


def one_round(sketch: CountSketch, x: float, width: float, top: float) -> list[str]:
    """Twelve coordinates, and which of them each cell holds."""
    step = width / DIM
    cells = [cell for cell, _ in places(sketch)]
    parts = [box(x + i * step + 2, top, step - 4, i) for i in range(DIM)]
    parts += lines(sketch, x, width, top + 32, top + 86)
    for cell in range(COLS):
        held = ", ".join(str(i) for i in range(DIM) if cells[i] == cell)
        parts.append(box(middle(x, width, cell) - 42, top + 88, 84, held))
    return parts


def two_rounds(seed: int) -> str:
    """Who shares a cell, in two rounds: with one hash, and with a fresh one each."""
    parts = []
    titles = ("one hash for the whole run", "a fresh hash in every round")
    for column, (title, rounds) in enumerate(zip(titles, ((0, 0), (0, 1)), strict=True)):
        x, width = 20 + 415 * column, 365
        parts.append(f'<g font-weight="600">{text(x, 26, title, anchor="start")}</g>')
        for row, round in enumerate(rounds):
            top = 64 + 150 * row
            parts.append(text(x, top - 10, f"round {row + 1}", "soft", "start"))
            parts += one_round(sketch_of(round, seed), x, width, top)
    return svg(820, 345, parts)


def figures() -> dict[str, str]:
    """Files and what is in them."""
    return {"sketch.svg": one_sketch(seed=12), "two-rounds.svg": two_rounds(seed=12)}


if __name__ == "__main__":
    for name, drawn in figures().items():
        (HERE / name).write_text(drawn)
