"""What a report says when it cannot be made."""

from __future__ import annotations

from fetchsgd.errors import UserError


class ReportError(UserError):
    """A sentence for the user: which file or folder, which field, and what would be right."""
