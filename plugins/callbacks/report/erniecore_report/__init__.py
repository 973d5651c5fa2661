"""The report of a run: a page without scripts or network (``report.html``), an image (``loss.png``), a short text.

Made from ``events.jsonl`` and the files beside it; works on a run that is still going or that crashed.
"""

from erniecore_report.summary import summary_text
from erniecore_report.write import Written, write_report

__all__ = ["Written", "summary_text", "write_report"]
