"""Turns the executed notebook of examples/ into a page of the site."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tickets.ipynb"


def page() -> str:
    """The notebook as Markdown: text, code, and what the code showed when it was executed."""
    parts = []
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _shown(output))]
    parts.append("The notebook is `examples/tickets.ipynb`; a test executes it with a small model.")
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
        lines = [line.strip() for line in html.splitlines() if line.strip()]
        return '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    text = "".join(data.get("text/plain", output.get("text", ""))).strip()
    return f"```text\n{text}\n```" if text else ""
