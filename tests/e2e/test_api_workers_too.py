"""Tests of one process once more, on workers. `tests/e2e/test_api_workers.py` has what only workers can do wrong."""

import pytest

from tests.e2e.test_api_workers import echo_server
from tests.e2e.test_disconnect import test_disconnect
from tests.e2e.test_responses_sdk import (
    client,
    test_a_background_response_survives_its_client,
    test_cancel,
    test_stored_continued_listed_deleted,
)

pytestmark = pytest.mark.long(extended=True)

__all__ = [
    "client", "echo_server", "test_a_background_response_survives_its_client", "test_cancel", "test_disconnect",
    "test_stored_continued_listed_deleted",
]  # fmt: skip
