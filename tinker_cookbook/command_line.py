"""Commands for people: what they did wrong is one line, and what we did wrong is a traceback."""

import sys
from collections.abc import Callable

import tinker
from chz.blueprint import EntrypointHelpException
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
    except EntrypointHelpException:  # chz has printed it
        return 0
    except SystemExit as end:
        if isinstance(end.__context__, EntrypointHelpException):  # which chz counts as an error
            return 0
        raise
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # the boundary to the user
        if not _is_for_user(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_for_user(error: Exception) -> bool:
    engine = sys.modules.get("tinker_engine.errors")
    if engine is not None and isinstance(error, engine.EngineError):
        return True
    if isinstance(error, tinker.RequestFailedError):
        return error.category == RequestErrorCategory.User
    # The SDK raises its base class itself for what is missing in the environment, such as a key.
    return type(error) is tinker.TinkerError or isinstance(error, (TinkerCookbookError, *_USER_ERRORS))
