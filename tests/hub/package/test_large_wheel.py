"""A wheel of 300 MiB is walked in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.archives import write_large_wheel

WALK = """
import json, sys
from pathlib import Path
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.zip_walk import walk_zip

def peak():  # KiB; ru_maxrss would begin with that of the process which started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

before = peak()
with open(sys.argv[1], "rb") as file:
    digests = walk_zip(file, Limits()).digests()
print(json.dumps({"size": digests["big_data.bin"].size, "grown_KiB": peak() - before}))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_wheel(tmp_path: Path) -> None:
    """Structure and digests of 300 MiB cost less than 32 MiB of memory."""
    path = write_large_wheel(tmp_path, "big", "1.0", 300 << 20)
    done = subprocess.run([sys.executable, "-c", WALK, str(path)], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["size"] == 300 << 20 and told["grown_KiB"] < 32 << 10, told
