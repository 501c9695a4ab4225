"""`python -m verifiers.train.engines.serve MODEL`: our engine as a server of its own.

The first line on stdout is JSON, {"url": …, "model": …, "pid": …}, once it answers; or {"error": …, "hint": …} if it
cannot start. With `--lifeline` it ends when its stdin is closed, and so with the process that started it, however that
ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from verifiers.clients.local import TokenizerRenderer
from verifiers.errors import Error, MissingExtraError
from verifiers.train.engines.server import SamplerServer

PARENT_S = 0.5
"""How often it is looked for whoever started this process."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal, or until the life line is cut."""
    options = _parser().parse_args(arguments)
    if options.lifeline:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        asyncio.run(_serve(options))
    except Error as error:
        _say({"error": str(error), "hint": error.hint})
        return int(error.exit_code)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verifiers.train.engines.serve", description=__doc__)
    add = parser.add_argument
    add("model", help="a folder in Hugging Face's layout, a .gguf file, or a name on the Hub")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--name", default="policy", help="of the model in requests")
    add("--max-batch", type=int, default=64, help="sequences that are decoded together")
    add("--max-context", type=int, default=4096, help="tokens of one sequence")
    add(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16", "float64"],
        help="auto takes that of the files",
    )
    add("--device", default="auto", help="auto takes a GPU if there is one")
    add("--version", type=int, default=0, help="of the policy that the model is")
    add("--seed", type=int, default=0, help="for requests without a seed")
    add("--threads", type=int, default=None, help="of torch; it decides itself unless given")
    add("--deterministic", action="store_true", help="the same bits in any company, at the cost of speed")
    add("--recompute-cache", action="store_true", help="after an update, for running requests")
    add("--record-routes", action="store_true", help="report the experts of each token")
    add("--lifeline", action="store_true", help="end when stdin is closed")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    try:
        import torch
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtraError("train", "the engine") from None
    from verifiers.train.engines.torch_engine import TorchEngine, stop_tokens
    from verifiers.train.models import find_device, load_model

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    disable_progress_bar()
    model, tokenizer = load_model(options.model, find_device(options.device), options.dtype)
    engine = TorchEngine(
        model,
        max_batch=options.max_batch,
        max_context=options.max_context,
        name=options.name,
        stop_token_ids=stop_tokens(model, tokenizer),
        decode=tokenizer.decode,
        version=options.version,
        seed=options.seed,
        deterministic=options.deterministic,
        recompute_cache=options.recompute_cache,
        record_routes=options.record_routes,
    )
    server = SamplerServer(engine, TokenizerRenderer(tokenizer, engine.info().context), name=options.name)
    url = await server.start(options.host, options.port)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    _say({"url": url, "model": options.name, "pid": os.getpid()})
    await ended.wait()
    await server.stop()
    await engine.close()


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    parent = os.getppid()
    # A fork of the parent may hold the other end open for longer than the parent lives.
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], PARENT_S)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            break
    os._exit(0)  # whoever asked is gone: nobody waits for what runs


if __name__ == "__main__":
    sys.exit(main())
