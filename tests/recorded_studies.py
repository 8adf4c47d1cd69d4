"""The studies of which a recording ships: the pages of the others say that they are not measured."""

import json
from pathlib import Path

from profiler_job.analysis.pages.questions import STUDIES

DATA = Path(__file__).parents[1] / "site" / "data"
_SHIPPED = {json.loads(file.read_text()).get("study", "") for file in DATA.glob("*/manifest.json")}

RECORDED = {letter: question for letter, question in STUDIES.items() if getattr(question, "STUDY", "") in _SHIPPED}
