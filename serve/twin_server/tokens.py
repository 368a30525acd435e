"""Token ids of a request as the twin's tokenizer has them."""

from __future__ import annotations

from array import array

from serve.twin_server.errors import BadRequest
from serve.twin_server.pieces import Ids


def token_array(ids: list[int]) -> Ids:
    """Raises :class:`BadRequest` for what is no token."""
    try:
        return array("I", ids)
    except OverflowError as error:
        raise BadRequest("The input_ids contain a value that is no token of this model.") from error
