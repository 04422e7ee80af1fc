"""Makes the modules of tests/toys importable by name from every test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "toys"))
