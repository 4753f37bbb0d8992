"""Commands for people: what they did wrong is one line, and what we did wrong is a traceback."""

import sys
from collections.abc import Callable

import tinker
from tinker.types import RequestErrorCategory

from tinker_cookbook.exceptions import TinkerCookbookError

_INTERRUPTED = 130  # as a shell reports it

_USER_ERRORS = (
    tinker.BadRequestError,
    tinker.AuthenticationError,
    tinker.PermissionDeniedError,
    tinker.NotFoundError,
    tinker.UnprocessableEntityError,
    tinker.BillingError,
    tinker.APIConnectionError,
)


def run_command(command: Callable[[], None]) -> int:
    """The exit code: 0, or 1 after one line about an error that the user can mend."""
    try:
        command()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (TinkerCookbookError, tinker.TinkerError) as error:
        if not _is_for_user(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_for_user(error: Exception) -> bool:
    if isinstance(error, tinker.RequestFailedError):
        return error.category == RequestErrorCategory.User
    return isinstance(error, (TinkerCookbookError, *_USER_ERRORS))
