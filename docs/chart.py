"""Draw ddp.svg, the chart of README.md, from the table of the default mode in measured.md: python docs/chart.py"""

from pathlib import Path

FOLDER = Path(__file__).parent
TABLE = "| model | alone | DDP over Gloo | `overlap=True` | default |"
BARS = {"computing alone": ("#bbbbbb", 1), "hpcomm, default": ("#1f77b4", 4), "DDP over Gloo": ("#ff7f0e", 2)}
LEFT, TOP, BAR, GAP, WIDTH = 170, 62, 15, 13, 720
SCALE = 1.42  # pixels a millisecond


def rows(page: str) -> list[list[str]]:
    """The cells of each row of the table."""
    lines = page[page.index(TABLE) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{words}</text>'


def drawn(page: str) -> str:
    """The chart as SVG."""
    title = "A training step of two ranks on one host, in milliseconds (M: million parameters)"
    parts, x, y = [text(16, 24, title, ' font-weight="bold"')], LEFT, TOP
    for name, (color, _) in BARS.items():
        parts += [f'<rect x="{x}" y="36" width="11" height="11" fill="{color}"/>', text(x + 16, 46, name)]
        x += 160
    for cells in rows(page):
        parts.append(text(LEFT - 10, y + 1.8 * BAR, cells[0], ' text-anchor="end"'))
        for color, column in BARS.values():
            long = SCALE * float(cells[column])
            parts += [
                f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR - 2}" fill="{color}"/>',
                text(round(LEFT + long + 5, 1), y + 11, cells[column]),
            ]
            y += BAR
        y += GAP
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    (FOLDER / "ddp.svg").write_text(drawn((FOLDER / "measured.md").read_text(encoding="utf-8")), encoding="utf-8")
