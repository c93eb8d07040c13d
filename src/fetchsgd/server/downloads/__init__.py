"""What the server sends a client that holds an older version, and how many bytes that takes."""

from fetchsgd.server.downloads.messages import Downloads, FloatDownloads, StepDownloads
from fetchsgd.server.downloads.step_log import StepLog

__all__ = ["Downloads", "FloatDownloads", "StepDownloads", "StepLog"]
