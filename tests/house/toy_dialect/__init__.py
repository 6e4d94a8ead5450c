"""A toy: Cohere's `POST /v2/chat`, as far as a conversation of texts. What it takes to add a dialect is this folder and a line.

https://docs.cohere.com/reference/chat and https://docs.cohere.com/reference/chat-stream
"""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.http.form import Form
from tests.house.toy_dialect.encode import error_object
from tests.house.toy_dialect.routes import router

DIALECT = Dialect(
    package=__name__,
    routers=(router,),
    form=Form(lambda path: path == "/v2/chat" or path.startswith("/v2/chat/"), error_object),
)
