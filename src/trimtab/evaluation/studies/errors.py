"""What can go wrong with a study."""

__all__ = ["StudyError"]


class StudyError(RuntimeError):
    """A study cannot go on, or its results cannot be trusted."""
