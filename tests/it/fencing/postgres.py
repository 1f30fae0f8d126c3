"""The fence in a transaction of psycopg.

Called with a connection string, the statement of a holder that lost the lock, and that of the next holder.
"""

import sys

import psycopg


def withdraw(connection, fence):
    """Commits only if no later holder was granted the lock. `fence` is what `guard.fence_sql()` returned."""
    with connection.transaction():
        connection.execute(fence)
        connection.execute("UPDATE account SET cents = cents - 5 WHERE id = 7")


def main(address, stale, current):
    with psycopg.connect(address, autocommit=True) as connection:
        try:
            withdraw(connection, stale)
        except psycopg.DatabaseError as error:
            assert error.sqlstate == "PL001", error
        else:
            raise AssertionError("the late transaction was committed")
        withdraw(connection, current)


if __name__ == "__main__":
    main(*sys.argv[1:])
