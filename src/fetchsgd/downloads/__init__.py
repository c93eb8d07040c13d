"""What the server sends a client that holds an older version, and how many bytes that takes."""

from fetchsgd.downloads.messages import Downloads, FloatDownloads, StepDownloads
from fetchsgd.downloads.step_log import StepLog

__all__ = ["Downloads", "FloatDownloads", "StepDownloads", "StepLog"]
