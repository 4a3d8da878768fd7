"""The four commands: pass the arguments to the server and print what it says."""

# ruff: noqa: PTH100, PTH109, PTH118, PTH119, PTH120, PTH123 -- importing pathlib takes longer than the rest
import json
import os
import socket
import sys

name = os.path.basename(sys.argv[0])
words = sys.argv[1:]
request = {"command": name, "words": words, "cwd": os.getcwd(), "path": os.environ.get("PATH", ""), "file": None}
if name == "qsub" and words and "--" not in words:
    try:
        with open(words[-1], encoding="utf-8", newline="") as handle:
            request["file"] = handle.read()
    except (OSError, UnicodeDecodeError) as error:
        request["problem"] = type(error).__name__
try:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..", "socket"))
        link.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(b"".join(iter(lambda: link.recv(65536), b"")))
except OSError:
    text = (
        "Couldn't connect to cluster: pbs01"
        if name == "qdel"
        else f"{name}: cannot connect to server pbs01 (errno=15010)"
    )
    if name == "qstat" and "json" in words:  # the header says nothing about the server
        sys.stdout.write('{\n\t"timestamp":\t0,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"pbs01"\n}\n')
    sys.stderr.write(f"Connection refused\n{text}\n")
    sys.exit(255 if name == "qstat" else 162)
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
