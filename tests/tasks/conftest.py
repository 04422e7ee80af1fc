"""The toys of the models' tests serve here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
