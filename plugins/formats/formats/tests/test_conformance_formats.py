"""The plugins keep the rules that every format and every reader keeps."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("format", "erniekit")
def test_conformance_of_erniekit(check):
    check()


@parametrize_checks("format", "alpaca")
def test_conformance_of_alpaca(check):
    check()


@parametrize_checks("format", "messages")
def test_conformance_of_messages(check):
    check()


@parametrize_checks("format", "text")
def test_conformance_of_text(check):
    check()


@parametrize_checks("format", "preference")
def test_conformance_of_preference(check):
    check()


@parametrize_checks("format", "query-response")
def test_conformance_of_query_response(check):
    check()


@parametrize_checks("reader", "jsonl")
def test_conformance_of_json_lines(check):
    check()


@parametrize_checks("reader", "json")
def test_conformance_of_json_arrays(check):
    check()


@parametrize_checks("reader", "txt")
def test_conformance_of_text_files(check):
    check()
