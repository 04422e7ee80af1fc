"""Makes the modules of tests/toys importable by name from every test, and Ray patient before anything imports it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "toys"))

from patient_ray import be_patient

be_patient()
