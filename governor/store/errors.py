"""What the store says no with, at the two places where it may: wiring it up, and reading from the command line.

::

    GovernorError
    └── StoreError          500  store_error
        ├── BadDatabaseUrl  500  bad_database_url    the URL cannot be understood, or its driver is not installed
        └── StoreUnreadable 500  store_unreadable    nothing there yet, locked, damaged, or the server is away

Writing raises none of these: see :class:`governor.store.model.TurnLog`.
"""

from __future__ import annotations

from governor.errors import GovernorError


class StoreError(GovernorError):
    code = "store_error"


class BadDatabaseUrl(StoreError):
    code = "bad_database_url"


class StoreUnreadable(StoreError):
    code = "store_unreadable"
