"""The four commands: pass the arguments to the server and print its answer."""

# ruff: noqa: PTH100, PTH109, PTH118, PTH119, PTH120, PTH123 -- importing pathlib takes longer than
# the rest; so do json and socket
import _socket
import marshal
import os
import sys

CLUSTER = "Couldn't connect to cluster: pbs01"
name = os.path.basename(sys.argv[0])
words = sys.argv[1:]
if words == ["--version"]:
    sys.stdout.write("pbs_version = 23.06.06\n")
    sys.exit()
request = {"command": name, "words": words, "cwd": os.getcwd()}
if name == "qsub":
    with open(words[-1], encoding="utf-8") as handle:
        request["script"] = handle.read()
try:
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..", "socket"))
    link.sendall(marshal.dumps(request))
    link.shutdown(_socket.SHUT_WR)
    code, out, err = marshal.loads(b"".join(iter(lambda: link.recv(65536), b"")))
except OSError:
    code, out = 255 if name == "qstat" else 162, ""
    text = f"{name}: cannot connect to server pbs01 (errno=15010)"
    err = f"Connection refused\n{text if name != 'qdel' else CLUSTER}\n"
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
