"""nmt-serve: a REST service and a web page for translators."""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from nmt.cli import console
from nmt.cli.arguments import (
    add_device,
    add_fields,
    add_flag,
    add_outside_kinds,
    add_path,
    add_precision,
    given_fields,
    new_parser,
    processes,
    reader,
)
from nmt.config.limits import Port
from nmt.config.search_options import DecodeConfig
from nmt.errors import UserError
from nmt.serving.limits import ServerLimits

DESCRIPTION = """\
Serve models over HTTP: the interface of LibreTranslate, attention of every head, and a web page.
Requests of all clients share batches. A translation is that of nmt-translate, to the last bit.
"""

EPILOG = """\
A text is translated line by line; blank lines and line ends are kept. docs/serving.md describes all
routes, and how to run the server behind nginx, as a systemd unit or in a container.
Exit codes: 2 bad options or models; 3 no usable model; 7 a damaged model; 130 and 143 after Ctrl-C
and SIGTERM, when all requests that had come were answered.
"""

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def build_parser() -> console.Parser:
    """The arguments of nmt-serve."""
    parser = new_parser("nmt-serve", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--model", action="append", required=True, metavar="[NAME=]DIR", help="model or run "
        "directory; give it several times to serve several models. NAME is what requests call it "
        "(default: the name of the directory)")  # fmt: skip
    add_outside_kinds(parser)
    group = parser.add_argument_group("network")
    add = group.add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen at (default: "
        "127.0.0.1, which only this machine can reach; others need --keys)")  # fmt: skip
    add("--port", type=reader(Port), default=8080, metavar="N", help="port to listen at; 0 is any "
        "free one, which is printed (default: 8080)")  # fmt: skip
    add("--root-path", default="", metavar="PATH", help="the path of this server behind a proxy "
        "that removes it, such as /translator")  # fmt: skip
    group = parser.add_argument_group("speed")
    add = group.add_argument
    add("--workers", type=processes, metavar="N", help="processes that translate (default: as "
        "many as cores, or 1 on a GPU)")  # fmt: skip
    add("--threads", type=processes, default=1, metavar="N", help="CPU threads of each worker "
        "(default: 1)")  # fmt: skip
    add_device(group)
    add_precision(group)
    add("--int8", action="store_true", help="8-bit weights: faster on CPUs, about as good")
    add_fields(parser.add_argument_group("search"), DecodeConfig)
    group = parser.add_argument_group("access and limits")
    add_path(group, "--keys", "clients must send a key of this file; its lines are "
             "`NAME KEY [REQUESTS_PER_MINUTE]`")  # fmt: skip
    add_fields(group, ServerLimits)
    add_flag(group, "--log-text", "log texts and translations, too; else nothing of them is logged")
    return parser


def read_models(given: Sequence[str]) -> dict[str, str]:
    """The directories by name, in their order."""
    models: dict[str, str] = {}
    for text in given:
        name, equals, directory = text.partition("=")
        if not equals or MODEL_NAME.fullmatch(name) is None:
            directory = text
            name = os.path.basename(os.path.abspath(text))
            if MODEL_NAME.fullmatch(name) is None:
                raise UserError(
                    f"--model {text}: give NAME=DIR, with a name of letters, digits and ._-"
                )
        if name in models:
            raise UserError(f"--model {text}: there is another model {name}; give NAME=DIR")
        models[name] = os.path.abspath(directory)
    return models


def serve(arguments: argparse.Namespace) -> int:
    """Load the models and serve them until a signal comes."""
    root = arguments.root_path.rstrip("/")
    if root and not root.startswith("/"):
        raise UserError(f"--root-path: expected a path such as /translator, got {root!r}")
    models = read_models(arguments.model)
    try:
        from nmt.serving.server import ServerSettings, serve
    except ModuleNotFoundError as error:
        raise UserError(
            f"nmt-serve needs the package {error.name}: pip install 'nmt[serve]'"
        ) from error
    from nmt.serving.messages import WorkerPlan

    plan = WorkerPlan(
        models,
        arguments.device,
        arguments.precision,
        arguments.int8,
        arguments.threads,
        given_fields(arguments, DecodeConfig),
    )
    return serve(
        ServerSettings(
            plan,
            arguments.workers,
            arguments.host,
            arguments.port,
            root,
            arguments.keys,
            ServerLimits(**given_fields(arguments, ServerLimits)),
            arguments.log_text,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-serve; returns the exit code."""
    return console.run(build_parser(), serve, argv)


if __name__ == "__main__":
    sys.exit(main())
