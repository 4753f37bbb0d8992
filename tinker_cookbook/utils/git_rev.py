"""What a training run says about where it comes from."""

import tinker_cookbook


def recipe_user_metadata(recipe_name: str) -> dict[str, str]:
    """For `user_metadata` of a service client, so that runs on a server can be told apart."""
    return {"recipe_name": recipe_name, "git_rev": tinker_cookbook.__version__}
