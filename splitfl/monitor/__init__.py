"""For whoever runs a server: structured logs, and metrics for Prometheus."""

from splitfl.monitor.endpoint import Endpoint as Endpoint
from splitfl.monitor.endpoint import expose as expose
from splitfl.monitor.logs import LogHandler as LogHandler
from splitfl.monitor.logs import configure_logs as configure_logs
from splitfl.monitor.metrics import Live as Live
from splitfl.monitor.metrics import Metrics as Metrics
from splitfl.monitor.metrics import MonitorError as MonitorError
