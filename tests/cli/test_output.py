import io
import json
import logging
import subprocess
import sys

import pytest

from verifiers.cli import output as module
from verifiers.cli.output import Output, error_code, error_object, log_file, run_command, shown
from verifiers.error_text import LONGEST_TEXT
from verifiers.errors import ConfigError, EndpointUnavailableError, Error, HubError, MissingKeyError
from verifiers.hub.package.refusal import RefusedError
from verifiers.settings import LOGGER


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def as_terminal(monkeypatch):
    """Make stdout and stderr one terminal. To be called in the test itself: pytest sets both anew after fixtures."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stream


# --- rendering ------------------------------------------------------------------------------------------------


def test_an_error_says_what_why_and_what_next(capsys):
    """Message, root cause, hint and code, all on stderr, and no traceback."""
    try:
        try:
            raise OSError("disk on fire")
        except OSError as cause:
            raise ConfigError("can not read it", hint="Put it out.") from cause
    except ConfigError as error:
        Output().error(error)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: can not read it",
        "cause: OSError: disk on fire",
        "hint: Put it out.",
        "(config; docs/reference/errors.md#classes)",
    ]


def test_a_cause_that_the_message_tells_is_not_repeated(capsys):
    """The cause line is left out when it says nothing new."""
    Output().error(ConfigError("can not read: disk on fire", cause=OSError(5, "disk on fire")))
    assert "cause:" not in capsys.readouterr().err


def test_verbose_adds_the_traceback(capsys):
    """--verbose shows where."""
    try:
        raise ConfigError("x")
    except ConfigError as error:
        Output(verbose=True).error(error)
    assert "Traceback" in capsys.readouterr().err


def test_error_codes_are_class_names():
    """The code is stable and readable."""
    assert error_code(MissingKeyError("A")) == "missing-key"
    assert error_code(EndpointUnavailableError("x")) == "endpoint-unavailable"
    assert error_code(Error("x")) == "error"


def test_an_error_that_has_a_code_of_its_own_is_told_by_it():
    """A rule of the hub has the same code everywhere."""
    assert error_code(RefusedError("file-name", "x")) == "file-name"
    assert error_code(SystemExit("x")) == "system-exit"
    assert error_object(ConfigError("m", hint="h")) == {
        "code": "config",
        "message": "m",
        "hint": "h",
        "docs": "docs/reference/errors.md#classes",
    }


def test_colours_only_where_a_person_sees_them(monkeypatch):
    """A terminal gets colours; NO_COLOR, TERM=dumb and files do not; the word is always there."""
    terminal = as_terminal(monkeypatch)
    Output().warning("careful")
    assert terminal.getvalue() == "\x1b[33mwarning:\x1b[0m careful\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        terminal.seek(0)
        terminal.truncate()
        Output().warning("careful")
        assert terminal.getvalue() == "warning: careful\n"
        monkeypatch.delenv(name)


def test_streams_without_unicode_get_ascii():
    """Known signs have ASCII forms, and other characters are escaped."""
    latin = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert shown("0.5 ± 0.1 · 3 × 2 …", latin) == "0.5 +/- 0.1 | 3 x 2 ..."
    assert shown("日", latin) == "\\u65e5"
    assert shown("± ok", io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == "± ok"


def test_tables_align_numbers_to_the_right(capsys):
    """Text is left-aligned, numbers right, and there is no trailing space."""
    Output().table(["name", "score"], [["a", "1.5"], ["long", "12.25"]])
    assert capsys.readouterr().out == "name  score\na       1.5\nlong  12.25\n"
    Output().table(["id", "on"], [["042" * 4, "2026-11-30"]])
    assert capsys.readouterr().out == "id            on\n042042042042  2026-11-30\n"


def test_json_leaves_stdout_to_objects(capsys):
    """With --json results and tables are silent and events are lines."""
    output = Output(json=True)
    output.result("text")
    output.table(["a"], [["b"]])
    output.event({"event": "x", "value": float("nan")})
    output.note("seen")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"event": "x", "value": None}
    assert shown.err == "seen\n"
    Output().event({"event": "x"})
    assert capsys.readouterr().out == ""


def test_questions_are_answered_by_yes_a_terminal_or_no(monkeypatch):
    """--yes answers in advance; a person may; a script gets no."""
    terminal = as_terminal(monkeypatch)
    assert Output().confirm("Sure?", yes=True)
    answers = Terminal("y\n")
    monkeypatch.setattr("sys.stdin", answers)
    assert Output().confirm("Sure?")
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert not Output().confirm("Sure?")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not Output().confirm("Sure?")
    assert "--yes" in terminal.getvalue()


# --- the boundary ---------------------------------------------------------------------------------------------


def fails_with(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (lambda: None, 0),
        (lambda: 5, 5),
        (fails_with(ConfigError("x")), 2),
        (fails_with(MissingKeyError("K")), 3),
        (fails_with(EndpointUnavailableError("x")), 4),
        (fails_with(ZeroDivisionError("x")), 1),
        (fails_with(KeyboardInterrupt()), 130),
    ],
)
def test_every_end_of_a_command_has_its_exit_code(command, code, capsys):
    """Typed errors bring their code, others are faults of ours, Ctrl-C is 130; nothing escapes."""
    assert run_command(command, Output()) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_asks_for_a_report(capsys):
    """What nobody expected names its class and says how to report it."""
    run_command(fails_with(ZeroDivisionError("by zero")), Output())
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: by zero" in err
    assert "--verbose" in err


def test_a_closed_pipe_is_no_error(monkeypatch):
    """`vf-eval … | head` ends quietly."""
    replaced = []
    monkeypatch.setattr(module.os, "dup2", lambda *numbers: replaced.append(numbers))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(open("/dev/null", "wb")))  # noqa: SIM115  # closed with it
    assert run_command(fails_with(BrokenPipeError()), Output()) == 0
    assert replaced
    __import__("sys").stdout.close()


# --- the log --------------------------------------------------------------------------------------------------


def test_warnings_of_the_package_are_lines_of_the_command(capsys):
    """Warnings are shown, information only with --verbose, and afterwards nothing is."""
    log = logging.getLogger("verifiers.part")

    def command():
        log.warning("careful")
        log.info("detail")

    run_command(command, Output())
    assert capsys.readouterr().err == "warning: careful\n"
    run_command(command, Output(verbose=True))
    assert "verifiers.part: detail" in capsys.readouterr().err
    handlers = len(LOGGER.handlers)
    run_command(command, Output())
    assert len(LOGGER.handlers) == handlers


def test_the_log_keeps_no_whole_conversation(tmp_path):
    """An entry that holds one loses its middle; what an exception says last stays."""
    with log_file(tmp_path / "log.txt"):
        try:
            raise ValueError("x" * 2_000_000 + "ends")
        except ValueError:
            LOGGER.debug("failed", exc_info=True)
    text = (tmp_path / "log.txt").read_text()
    assert len(text) < 2 * LONGEST_TEXT and "failed" in text and text.strip().endswith("ends")


def test_the_runs_log_holds_information_with_tracebacks(tmp_path, capsys):
    """The file has more than the screen."""
    with log_file(tmp_path / "log.txt"):
        logging.getLogger("verifiers.part").info("detail")
        try:
            raise ValueError("boom")
        except ValueError:
            logging.getLogger("verifiers.part").exception("failed")
    text = (tmp_path / "log.txt").read_text()
    assert "INFO    verifiers.part: detail" in text
    assert "Traceback" in text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["eval", "init", "install"])
def test_a_reader_that_goes_away_is_no_error(command):
    """`--help | head -1` prints one line and nothing else, and the command ends well."""
    code = f"from verifiers.cli.{command} import main; main(['--help'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_an_error_names_the_page_that_explains_it():
    """A rule of the hub leads to that rule, an answer of a hub to the page that the hub names."""
    assert error_object(RefusedError("file-name", "x"))["docs"] == "docs/reference/hub-rules.md#file-name"
    error = HubError("x")
    assert error_object(error)["docs"] == module.ERRORS_PAGE
    error.docs = "docs/reference/hub-api.md#errors"
    assert error_object(error)["docs"] == "docs/reference/hub-api.md#errors"
