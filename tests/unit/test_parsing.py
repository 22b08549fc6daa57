"""The parser gives the right answer on good code whatever other threads do."""

import ast
import threading

import pytest

from kernel_lsp import parsing


def test_bad_code_is_still_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parsing.parse("def f(:")


def test_a_stumble_of_the_interpreter_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good, stumbles = ast.parse, iter([True, True, False])

    def parse(source: str, filename: str) -> ast.Module:
        if next(stumbles):
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=166)")
        return good(source, filename=filename)

    monkeypatch.setattr(parsing.ast, "parse", parse)
    assert ast.dump(parsing.parse("x = 1")) == ast.dump(good("x = 1"))


def test_threads_that_parse_at_the_same_time_do_not_disturb_each_other() -> None:
    source, failures = "f(" * 60 + ")" * 60 + "\n", []

    def work() -> None:
        for _ in range(200):
            try:
                parsing.parse(source * 5)
            except SystemError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
