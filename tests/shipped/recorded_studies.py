"""The studies that ship a recording: the pages of the others say that they are not measured."""

import json

from profiler_job.analysis.pages.questions import STUDIES
from tests.shipped.recordings import MANIFESTS

_SHIPPED = {json.loads(file.read_text()).get("study", "") for file in MANIFESTS}

RECORDED = {letter: question for letter, question in STUDIES.items() if (question.study or "") in _SHIPPED}
