"""`report.html`: accuracy, loss, bytes, idle time and the timeline of a mini-batch, for one run or several."""

from splitfl.report.write import ReportError as ReportError
from splitfl.report.write import write as write
from splitfl.run.record import Failure as Failure
from splitfl.run.record import History as History
from splitfl.run.record import RoundRecord as RoundRecord
from splitfl.run.record import Span as Span
