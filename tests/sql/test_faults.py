"""What a database's error means, by its code: the codes that a test cannot make a server give."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from django.db import utils
from sqlalchemy.exc import DBAPIError

from fastdedup.sql.faults import DatabaseFault, fault_of, translated

OF_STATES = {
    "40001": DatabaseFault.RETRY,
    "40P01": DatabaseFault.RETRY,
    "40003": DatabaseFault.UNKNOWN,  # the completion of a statement is unknown
    "55P03": DatabaseFault.LOCKED,
    "25006": DatabaseFault.STANDBY,
    "25P02": DatabaseFault.ABORTED,
    "3F000": DatabaseFault.NO_TABLE,
    "08006": DatabaseFault.UNKNOWN,
    "57P01": DatabaseFault.UNKNOWN,  # the server shuts down
    "XX000": DatabaseFault.UNKNOWN,
    "23505": DatabaseFault.REFUSED,
    "57014": DatabaseFault.REFUSED,
}
OF_NUMBERS = {
    1213: DatabaseFault.RETRY,
    1020: DatabaseFault.RETRY,
    3101: DatabaseFault.RETRY,  # group replication refuses the COMMIT
    1205: DatabaseFault.LOCKED,
    1290: DatabaseFault.STANDBY,
    1836: DatabaseFault.STANDBY,
    1146: DatabaseFault.NO_TABLE,
    1049: DatabaseFault.NO_TABLE,
    1053: DatabaseFault.UNKNOWN,  # the server shuts down
    1317: DatabaseFault.UNKNOWN,  # interrupted, perhaps in the COMMIT
    2006: DatabaseFault.UNKNOWN,
    2013: DatabaseFault.UNKNOWN,
    4031: DatabaseFault.UNKNOWN,
    1062: DatabaseFault.REFUSED,
    3819: DatabaseFault.REFUSED,
}
OF_CODES = {
    sqlite3.SQLITE_BUSY: DatabaseFault.RETRY,
    sqlite3.SQLITE_BUSY_SNAPSHOT: DatabaseFault.RETRY,
    sqlite3.SQLITE_LOCKED: DatabaseFault.RETRY,
    sqlite3.SQLITE_READONLY_DIRECTORY: DatabaseFault.READ_ONLY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: DatabaseFault.REFUSED,
    sqlite3.SQLITE_IOERR_FSYNC: DatabaseFault.UNKNOWN,
    sqlite3.SQLITE_FULL: DatabaseFault.UNKNOWN,
}


def of_psycopg(state: str) -> Exception:
    error = psycopg.OperationalError("said so")
    error.sqlstate = state
    return error


def of_sqlite(code: int) -> Exception:
    error = sqlite3.OperationalError("said so")
    error.sqlite_errorcode = code
    return error


ERRORS = [
    *((of_psycopg(state), fault) for state, fault in OF_STATES.items()),
    *((pymysql.err.OperationalError(number, "said so"), fault) for number, fault in OF_NUMBERS.items()),
    *((of_sqlite(code), fault) for code, fault in OF_CODES.items()),
    (Exception({"S": "ERROR", "C": "55P03", "M": "said so"}), DatabaseFault.LOCKED),  # as pg8000 has it
    (psycopg.OperationalError("the connection is lost"), DatabaseFault.UNKNOWN),
    (pymysql.err.InterfaceError(0, ""), DatabaseFault.UNKNOWN),
    (ConnectionResetError(), DatabaseFault.UNKNOWN),
]


@pytest.mark.parametrize(("error", "fault"), ERRORS, ids=[repr(error)[:60] for error, _ in ERRORS])
def test_an_error_means_the_same_however_it_is_wrapped(error: Exception, fault: DatabaseFault) -> None:
    assert fault_of(error) is fault
    assert fault_of(DBAPIError("SELECT 1", {"secret": 7}, error)) is fault
    by_django = utils.OperationalError("said so")
    by_django.__cause__ = error
    assert fault_of(by_django) is fault


def test_an_error_shows_neither_statement_nor_parameters() -> None:
    told = translated(DBAPIError("SELECT 1", {"secret": 7}, of_psycopg("40001")), "inbox")
    assert "(said so)" in str(told)
    assert "secret" not in str(told)
