"""Executes examples/tickets.ipynb in a temporary folder and saves the outputs of its cells: `make notebook`."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import pinprompt

sys.path.insert(0, str(Path(__file__).parent))
from notebook_page import NOTEBOOK, code_hash


def main() -> int:
    """Execute all cells in order; an error in a cell stops this, and the file is not changed."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory(prefix="pinprompt-notebook-") as place:
        shutil.copytree(NOTEBOOK.parent / "data", Path(place) / "data")
        here = {"metadata": {"path": place}}
        NotebookClient(book, timeout=None, kernel_name="python3", resources=here).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when each cell began and ended
        if cell.cell_type == "code":
            # Warnings of other libraries and lines about the machine do not belong in the outputs.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    book.metadata["pinprompt"] = {
        "code": code_hash(book),
        "version": pinprompt.__version__,
        "date": datetime.date.today().isoformat(),
    }
    text = nbformat.writes(book)
    home = os.path.expanduser("~")
    for private in (place, home):
        if private in text:
            raise SystemExit(f"the outputs name {private}, a folder of this machine; let the cell show less")
    NOTEBOOK.write_text(text + "\n", "utf-8")
    sys.stdout.write(f"{NOTEBOOK}; `make docs` writes its page\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
