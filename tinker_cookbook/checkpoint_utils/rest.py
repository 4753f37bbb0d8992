"""The client of the server's records of runs and checkpoints."""

import warnings

import tinker


def rest_client(service_client: tinker.ServiceClient) -> tinker.RestClient:
    """Of the same server and key. The SDK's advice to construct one needs both, and a ServiceClient does not tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return service_client.create_rest_client()
