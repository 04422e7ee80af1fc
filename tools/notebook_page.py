"""Turns the executed notebook of examples/ into a page of the site."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tickets.ipynb"


def code_hash(book: Mapping[str, Any]) -> str:
    """A hash of the code cells, to detect outputs that belong to other code."""
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()


def page() -> str:
    """The notebook as Markdown: text, code, and the outputs of the last execution."""
    parts, book = [], json.loads(NOTEBOOK.read_text("utf-8"))
    for cell in book["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _shown(output))]
    executed = book["metadata"]["pinprompt"]
    parts.append(
        f"The notebook is `examples/tickets.ipynb`, executed by `make notebook` on {executed['date']} with pinprompt "
        f"{executed['version']} and `smollm2` on two CPU cores."
    )
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.S)
        html = html.replace(' border="1" class="dataframe"', "")  # so that the site's own style applies
        lines = [line.strip() for line in html.splitlines() if line.strip()]
        return '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    text = "".join(data.get("text/plain", output.get("text", ""))).strip()
    return f"```text\n{text}\n```" if text else ""
