"""The two ways in which a run ends early."""


class UserError(ValueError):
    """A user's mistake, in a sentence that says what would be right: exit code 2."""


class DivergedError(RuntimeError):
    """The loss has blown up: exit code 3.

    result: what was measured until then, where the run was called for from Python.
    """

    result: object = None
