"""How the drivers of `reading/test_s3a.py` and their workers reach the server: by variables of no tool."""

import os


def options() -> dict[str, str]:
    """Options of the store."""
    return {
        "endpoint": os.environ["S3_ENDPOINT"],
        "access_key_id": os.environ["S3_ACCESS"],
        "secret_access_key": os.environ["S3_HIDDEN"],
        "region": "us-east-1",
        "allow_http": "true",
    }
