"""Self-contained HTML pages: text, tables and pictures in one file that needs no network."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --line: #d0d7de;
  --paper: #ffffff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b3; --line: #30363d;
  --paper: #0d1117; --card: #161b22; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.4rem; }
p.lead, figcaption { color: var(--soft); } figure { margin: 1rem 0; }
figure img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figcaption { font-size: .88rem; margin-top: .4rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--line); text-align: left; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } code { background: var(--card); padding: .1rem .3rem;
  border-radius: 4px; }
"""


@dataclass
class Page:
    """A page that grows from top to bottom."""

    title: str
    lead: str = ""
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def picture(self, png: bytes, caption: str) -> None:
        source = base64.b64encode(png).decode()
        self.parts.append(
            f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{source}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{' class=number' if i else ''}>{html.escape(cell)}</td>"
                for i, cell in enumerate(row)
            )
            + "</tr>"
            for row in rows
        )
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def code(self, text: str) -> None:
        self.parts.append(f"<p><code>{html.escape(text)}</code></p>")

    def render(self) -> bytes:
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{html.escape(self.title)}</h1>"
            f'<p class="lead">{html.escape(self.lead)}</p>{"".join(self.parts)}</body></html>\n'
        ).encode()
