"""An answer as text, as a plot and as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

from tools.replay.questions import Answer


def text(answer: Answer) -> str:
    """The set-up, an aligned table and the sentences."""
    lines = [answer.title]
    lines += [f"  {name}: {value}" for name, value in answer.setup.items()]
    if answer.rows:
        table = [list(answer.rows[0])] + [[shown(v) for v in row.values()] for row in answer.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines.append("")
        for row in table:
            cells = [
                c.ljust(w) if i == 0 else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, *([""] if answer.sentences else []), *answer.sentences])


def shown(value: Any) -> str:
    """A figure with three significant digits, whole above a thousand."""
    if isinstance(value, str):
        return value
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(answer: Answer, folder: Path, name: str) -> list[Path]:
    """``NAME.png`` and ``NAME.html`` in ``folder``; raises ImportError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    image = plot(answer)
    png, page = folder / f"{name}.png", folder / f"{name}.html"
    png.write_bytes(image)
    page.write_text(_page(answer, image))
    return [png, page]


def plot(answer: Answer) -> bytes:
    """A PNG with one panel for each column that the answer wants drawn."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axis, columns = answer.plot
    figure, panels = pyplot.subplots(
        1, len(columns), figsize=(5.5 * len(columns), 4), squeeze=False, layout="constrained"
    )
    x = [row[axis] for row in answer.rows]
    numeric = all(isinstance(v, int | float) for v in x)
    for panel, column in zip(panels[0], columns, strict=True):
        values = [float(row[column]) for row in answer.rows]
        if numeric:
            panel.plot(x, values, marker="o")
            panel.set_xlabel(axis)
            panel.set_ylim(bottom=0)
        else:
            panel.barh([str(v) for v in x][::-1], values[::-1])
        panel.set_title(column)
        panel.grid(alpha=0.3)
    figure.suptitle(answer.title)
    out = io.BytesIO()
    # No version or date in it: the same figures give the same bytes.
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return out.getvalue()


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)


def _page(answer: Answer, image: bytes) -> str:
    def cells(values: Any, tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(shown(v))}</{tag}>" for v in values)

    setup = "".join(f"<li>{html.escape(k)}: {html.escape(v)}</li>" for k, v in answer.setup.items())
    head = cells(answer.rows[0], "th") if answer.rows else ""
    rows = "".join(f"<tr>{cells(row.values(), 'td')}</tr>" for row in answer.rows)
    said = "".join(f"<p>{html.escape(s)}</p>" for s in answer.sentences)
    data = base64.b64encode(image).decode()
    title = html.escape(answer.title)
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><ul>{setup}</ul>{said}<table><tr>{head}</tr>{rows}</table>"
        f'<p><img alt="{title}" src="data:image/png;base64,{data}"></p>\n'
    )
