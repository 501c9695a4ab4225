"""Names of top-level modules and of scripts that no published package may hold, because they are others'.

They are the standard library's, our own, and those of the distributions that come with this package or with Python's
virtual environments. A second package with such a module would put its files over them, or hide them, wherever it is
installed (verifiers#335).

The list is written down, so that server and client decide alike whatever else is installed beside them; a test
compares it with the installed distributions.
"""

from __future__ import annotations

import re
import sys

from verifiers.hub.package.paths import fold

OURS = ("verifiers", "hub_server")

_DISTRIBUTIONS = """
aiohappyeyeballs aiohttp aiosignal annotated-types antlr4-python3-runtime=antlr4 anyio attrs=attr,attrs
certifi charset-normalizer click cyclopts datasets dill docstring-parser filelock frozenlist fsspec h11
hf-xet httpcore httpcore2 httpx httpx2 huggingface-hub idna jiter latex2sympy2-extended
markdown-it-py=markdown_it math-verify mdurl mpmath multidict multiprocess=_multiprocess,multiprocess numpy
openai orjson packaging pandas propcache pyarrow pydantic pydantic-core pygments python-dateutil=dateutil
pyyaml=_yaml,yaml requests rich rich-rst scipy six sniffio sympy=isympy,sympy tqdm truststore
typing-extensions typing-inspection urllib3 uv xxhash yarl
"""
"""Everything that `verifiers` requires, directly or not: `distribution`, or `distribution=module,module` where the
modules are not called as it is."""

_OF_EXTRAS = "anthropic keyring mcp ray tomlkit xllamacpp"
"""What the extras for authors and clients name directly."""

_TOOLS = "pip setuptools=setuptools,pkg_resources,_distutils_hack,distutils_precedence wheel virtualenv=_virtualenv"
"""What virtual environments come with."""

_SCRIPTS = """
cyclopts datasets-cli f2py get_gprof get_objgraph hf httpx httpx2 huggingface-cli idna isympy keyring markdown-it mcp
normalizer numpy-config openai pygmentize pygrun ray serve tiny-agents tqdm tune undill
"""
"""Scripts of the distributions above."""

_OTHER_SCRIPTS = re.compile(
    r"(?:(?:python|pypy|pip|pydoc|idle|2to3|easy_install)(?:w?[0-9.-]*(?:config)?)|py|pyw|uvx?|wheel|(?:de)?activate.*|vf-.*"
    r"|hub|sandboxd)\Z"
)
"""Scripts of an interpreter, of a virtual environment and of this package."""
_SCRIPT_END = re.compile(r"(?:\.(?:exe|com|bat|cmd|ps1|fish|csh)|-script\.pyw?)\Z")


_STANDARD_ELSEWHERE = """
aifc annotationlib asynchat asyncore audioop cgi cgitb chunk compression crypt distutils imghdr imp lib2to3 mailcap
msilib nis nntplib ossaudiodev pipes sitecustomize smtpd sndhdr spwd sunau telnetlib usercustomize uu xdrlib
"""
"""Of the standard library from Python 3.11 on, whichever version decides here, and what it imports when it starts."""


def _modules() -> dict[str, str]:
    owners = dict.fromkeys(OURS, "verifiers")
    for entry in f"{_DISTRIBUTIONS} {_OF_EXTRAS} {_TOOLS}".split():
        distribution, _, modules = entry.partition("=")
        for module in (modules or distribution.replace("-", "_")).split(","):
            owners[module] = distribution
    return owners


MODULES: dict[str, str] = _modules()
"""Module to the distribution that it belongs to; the standard library's are not among them."""


_STANDARD = frozenset(name.lower() for name in [*sys.stdlib_module_names, *_STANDARD_ELSEWHERE.split()])
SCRIPTS = frozenset(_SCRIPTS.split())


def owner_of(module: str) -> str | None:
    """Whose a top-level module is, in words; None for one that is free. Case is folded, as some file systems do."""
    folded = fold(module)
    if folded.startswith("__editable__"):
        return "an editable installation"
    return "Python's standard library" if folded in _STANDARD else MODULES.get(folded)


def is_taken_script(name: str) -> bool:
    """Whether a script is there already, wherever `verifiers` is installed; on Windows it has an ending."""
    folded = fold(name)
    plain = _SCRIPT_END.sub("", folded)
    return plain in SCRIPTS or _OTHER_SCRIPTS.match(plain) is not None or _OTHER_SCRIPTS.match(folded) is not None
