"""Programs that begin at once: forks of a process that has imported torch, Triton and kperf, which takes seconds each.

`serve` is that process. This file is also the program that tests give to commands in place of `python`:
`python forks.py SOCKET -m MODULE ARGUMENTS` asks for a fork that is MODULE, in this folder and environment and with
these standard streams, and ends as the fork ends. Signals for its process group reach the fork, but in a session of its
own. What an interpreter does at its end is not done.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress

_LARGEST = 1 << 20


def serve(descriptor: int) -> None:
    """Fork for each client of the listening socket with that file descriptor. Never returns."""
    for module in (
        "torch",
        "triton",
        "kperf.cli.app",
        "kperf.trace.command",
        "kperf.diagnose.command",
        "kperf.plots.style",
    ):
        importlib.import_module(module)
    listening = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: they say how they end
    while True:
        client, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            client.sendall(bytes([_run(client)]))
            os._exit(0)
        client.close()


def _run(client: socket.socket) -> int:
    """Be the module that the client asks for. Returns its exit status."""
    request, streams, *_ = socket.recv_fds(client, _LARGEST, 3)
    group, folder, environment, (_, module, *arguments) = json.loads(request)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(PermissionError):  # another session's
        os.setpgid(0, group)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # as it is where `python -m` begins
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


def _ask(path: str, *words: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        request = json.dumps([os.getpgid(0), os.getcwd(), dict(os.environ), words])  # noqa: PTH109
        socket.send_fds(server, [request.encode()], [0, 1, 2])
        ended = server.recv(1)
    return ended[0] if ended else 128 + signal.SIGKILL  # without a word


if __name__ == "__main__":
    sys.exit(_ask(*sys.argv[1:]))
