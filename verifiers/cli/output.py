"""Everything that the commands print, and the one place that prints it.

Data goes to stdout, everything else to stderr. Errors are rendered once: what happened, why, what to do next. Colour is
off for `NO_COLOR`, `TERM=dumb` and anything that is no terminal, and never the only sign; terminals that cannot show
a character get ASCII. `rich` is loaded only by what needs it.

    output = Output(json=False, verbose=False)
    output.note("loading gsm8k")
    output.result("0.412")
    sys.exit(run_command(lambda: command(...), output))
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from verifiers.error_text import ErrorChain, shortened
from verifiers.errors import Error, ExitCode, StoreError
from verifiers.settings import LOG_FORMAT, LOGGER

ERRORS_PAGE = "docs/reference/errors.md#classes"

_STYLES = {"error": "31;1", "warning": "33", "hint": "36", "note": "2", "ok": "32", "bold": "1"}
_ASCII = {
    "✓": "+",
    "✗": "x",
    "±": "+/-",
    "·": "|",
    "…": "...",
    "×": "x",
    "–": "-",
    "≥": ">=",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
    "░": ".",
}


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return not stream.closed and stream.isatty() and os.environ.get("TERM") != "dumb"


def colours(stream: TextIO) -> bool:
    """Whether this stream gets colours (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def shown(text: str, stream: TextIO) -> str:
    """The text with characters that the stream cannot encode replaced by ASCII."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for character, plain in _ASCII.items():
            text = text.replace(character, plain)
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def styled(text: str, style: str, stream: TextIO) -> str:
    """The text in one of the styles error, warning, hint, note, ok and bold."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colours(stream) else text


def error_code(error: BaseException) -> str:
    """The stable name of an error in machine output: its own code, or its class, as in `missing-key`."""
    if isinstance(error, Error) and isinstance(code := getattr(error, "code", None), str):
        return code
    name = type(error).__name__.removesuffix("Error") or "error"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def error_object(error: BaseException) -> dict[str, Any]:
    """The one JSON shape of errors: code, message, hint, docs."""
    return {
        "code": error_code(error),
        "message": _message(error),
        "hint": getattr(error, "hint", None),
        "docs": error_page(error),
    }


def error_page(error: BaseException) -> str:
    """The page that explains the error: the one that it names itself, or that of the classes."""
    named = getattr(error, "docs", None) if isinstance(error, Error) else None
    return named if isinstance(named, str) else ERRORS_PAGE


def _is_number(cell: str) -> bool:
    """Whether a cell begins as a number does and is none of what only looks so: a digest, an id, a day."""
    return bool(re.match(r"[-+\d–]", cell)) and not re.fullmatch(r"[0-9a-f]{12,64}|\d{4}-\d\d-\d\d", cell)


def _is_gone(stream: Any) -> bool:
    """Whether code of an environment has closed a stream, or put nothing in its place."""
    return stream is None or getattr(stream, "closed", False)


class Output:
    """What one command prints. `json` leaves stdout to JSON objects, `verbose` shows tracebacks and the whole log."""

    def __init__(self, *, json: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.verbose = verbose
        # Kept, so that the code of environments can be given another stdout while events go to this one.
        self._kept = sys.stdout

    @property
    def _stdout(self) -> TextIO:
        if _is_gone(self._kept):
            self._kept = sys.stdout = _reopened(1)
        return self._kept

    @property
    def _stderr(self) -> TextIO:
        if _is_gone(sys.stderr):
            sys.stderr = _reopened(2)
        return sys.stderr

    # --- stdout -----------------------------------------------------------------------------------------------

    def result(self, text: str = "") -> None:
        """What was asked for, one line or more. Nothing with --json."""
        if not self.json:
            self._write(self._stdout, text)

    def event(self, event: dict[str, Any]) -> None:
        """One JSON object on a line of its own, at once. Nothing without --json."""
        if self.json:
            from verifiers.evals.encoding import to_json  # orjson, at its point of use

            self._write(self._stdout, to_json(event).decode())

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns with two spaces between them; all but the first are right-aligned if they hold numbers."""
        if self.json or not rows:
            return
        lines = [list(header), *[list(row) for row in rows]]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        numeric = [all(_is_number(row[column] or "–") for row in rows) for column in range(len(header))]
        for number, line in enumerate(lines):
            cells = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ]
            text = "  ".join(cells).rstrip()
            self._write(self._stdout, styled(text, "bold", self._stdout) if number == 0 else text)

    def raw(self, data: bytes, *, error: bool = False) -> None:
        """What another program printed, as it is. Nothing with --json. BrokenPipeError: nobody reads it any more."""
        if not self.json:
            stream = self._stderr if error else self._stdout
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()

    # --- stderr -----------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Something worth knowing."""
        self._write(self._stderr, styled(text, "note", self._stderr))

    def warning(self, text: str) -> None:
        """Something that may be wrong."""
        self._labelled("warning", text)

    def hint(self, text: str) -> None:
        """What to do next."""
        self._labelled("hint", text)

    def error(self, error: BaseException) -> None:
        """What happened, why, and what to do next; as a JSON event too with --json."""
        self.event({"event": "error", "error": error_object(error)})
        if self.verbose:
            import traceback

            self._write(self._stderr, "".join(traceback.format_exception(error)).rstrip())
        self._labelled("error", _message(error))
        if cause := _root_cause(error):
            self._labelled("cause", cause, style="note")
        if hint := getattr(error, "hint", None):
            self._labelled("hint", str(hint))
        self._write(self._stderr, styled(f"({error_code(error)}; {error_page(error)})", "note", self._stderr))

    def confirm(self, question: str, *, yes: bool = False) -> bool:
        """Ask on a terminal. `yes` answers at once; without a terminal the answer is no."""
        if yes:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.note(f"{question} No: this is no terminal (--yes answers in advance).")
            return False
        sys.stderr.write(shown(f"{question} [y/N] ", sys.stderr))
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def confirm_name(self, question: str, name: str, *, yes: bool = False) -> bool:
        """Have the name of what is at stake typed on a terminal. `yes` and no terminal are as above."""
        if yes:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.note(f"{question} No: this is no terminal (--yes answers in advance).")
            return False
        sys.stderr.write(shown(f"{question} Type {name} to go on: ", sys.stderr))
        sys.stderr.flush()
        return sys.stdin.readline().strip() == name

    def _labelled(self, label: str, text: str, style: str | None = None) -> None:
        self._write(self._stderr, f"{styled(label + ':', style or label, self._stderr)} {text}")

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(shown(text, stream) + "\n")
            stream.flush()
        except OSError as error:
            _silence(stream)
            # Nobody reads it any more: `| head` had enough, the terminal or the descriptor was closed. That ends no
            # run, and neither does a progress line that finds no place.
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF) and stream is self._kept:
                raise StoreError(f"can not write to stdout: {error.strerror}", cause=error) from error
        except ValueError:
            if not stream.closed:
                raise
            # By code of an environment, a moment ago, in a thread of its own.
            self._write(self._stdout if stream is self._kept else self._stderr, text)


def with_standard_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (`>&-`) empty ones.

    Otherwise the next file that is opened, such as the results of the run, would take their place.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # Takes the lowest free descriptor, which is this one; for the programs that we start, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, _reopened(descriptor))


def _reopened(descriptor: int) -> TextIO:
    mode = "w" if descriptor else "r"
    return open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[return-value]


def _silence(stream: TextIO) -> None:
    """Let further text go nowhere; Python would complain again when it flushes at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


# --- the log --------------------------------------------------------------------------------------------------


class _LogLines(logging.Handler):
    """The package's warnings (with --verbose everything) as lines of the command. stderr is looked up each time, so
    that a live display can take it over for a while."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG if output.verbose else logging.WARNING)
        self.output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = shortened(record.getMessage())
        if record.levelno >= logging.WARNING:
            self.output.warning(text)
        else:
            self.output.note(f"{record.name}: {text}")
        if record.exc_info and self.output.verbose:
            self.output.note(logging.Formatter().formatException(record.exc_info))


@contextmanager
def logging_to(output: Output) -> Iterator[None]:
    """Show the package's log while a command runs. `VF_LOG_LEVEL` or --verbose show more of it."""
    handler = _LogLines(output)
    named = logging.getLevelNamesMapping().get(os.environ.get("VF_LOG_LEVEL", "").upper())
    if named is not None and not output.verbose:
        handler.setLevel(named)
    with _attached(handler, handler.level):
        yield


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Write the whole log of the package to a file too: the traceback of each failure is at level DEBUG."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace", delay=True)
    handler.setFormatter(_Shortening(LOG_FORMAT))
    with _attached(handler, logging.DEBUG):
        yield


class _Shortening(logging.Formatter):
    """Leaves the middle of very long entries out: an exception may hold a whole conversation, and all rollouts fail."""

    def format(self, record: logging.LogRecord) -> str:
        return shortened(super().format(record))


@contextmanager
def _attached(handler: logging.Handler, level: int) -> Iterator[None]:
    before = LOGGER.level
    handler.setLevel(level)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(min(before or logging.WARNING, level))
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)
        handler.close()


# --- the boundary of every command ----------------------------------------------------------------------------


def run_command(command: Callable[[], ExitCode | int | None], output: Output) -> int:
    """Run a command and answer for every way it can end. Returns the exit code."""
    try:
        with logging_to(output):
            return int(command() or ExitCode.OK)
    except Error as error:
        output.error(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        output.note("interrupted")
        return int(ExitCode.INTERRUPTED)
    except BaseException as error:  # boundary: a command never ends with a bare traceback, nor where code exits
        if _reader_is_gone(error):
            _silence(sys.stdout)
            return int(ExitCode.OK)
        output.error(_unexpected(error))
        return int(ExitCode.FAILED)


def _reader_is_gone(error: BaseException) -> bool:
    """Whether whoever read our output closed it, as `| head` does. Rich turns that into an exit of its own."""
    return isinstance(error, BrokenPipeError) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
    )


def _unexpected(error: BaseException) -> Error:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Error(
        f"unexpected {text}",
        hint="This is a fault of the command: run it again with --verbose and report what it prints.",
        cause=error,
    )


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _root_cause(error: BaseException) -> str | None:
    """The innermost cause, unless the message tells it already, as it does where pydantic found the mistake."""
    links = ErrorChain(error).chain[1:]
    if links and type(links[-1]).__module__.startswith("pydantic"):
        return None
    text = re.sub(r"^\[Errno \d+\] ", "", str(links[-1])) if links else ""
    return f"{type(links[-1]).__name__}: {text}" if text and text not in _message(error) else None
