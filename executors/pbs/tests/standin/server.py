"""The server: a socket for the clients, one thread that schedules, starts and kills jobs, and
levers for tests.
"""

import marshal
import shutil
import signal
import socketserver
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import commands
from .model import SERVER, Config, Job
from .node import deliver, session, signal_session, start


class StandIn:
    """A PBS of its own in a temporary folder. `bin` holds the commands; `calls` lists every command
    that was run.

    `taken` counts what clients have asked so far, also of a hung server.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.home = Path(tempfile.mkdtemp(prefix="pbs"))
        self.bin = self.home / "bin"
        self.calls: list[tuple[float, str, list[str]]] = []
        self.jobs: dict[int, Job] = {}
        self.purged: set[int] = set()
        self.down_nodes: set[int] = set()
        self.lock = threading.RLock()
        self.taken = 0
        self.last = 0
        self._answering = threading.Event()
        self._answering.set()
        self._over = threading.Event()
        self._server: socketserver.BaseServer | None = None
        commands.install(self.bin)

    def __enter__(self) -> Self:
        self.up()
        self._scheduler = threading.Thread(target=self._schedule_for_ever, daemon=True)
        self._scheduler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self.resume()
        self.down()
        self._scheduler.join()
        for job in self.jobs.values():
            self._kill_at_once(job)
        shutil.rmtree(self.home, ignore_errors=True)

    # Levers for tests

    def up(self) -> None:
        """Let the server listen."""
        standin = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                request = marshal.loads(self.rfile.read())
                with standin.lock:
                    standin.taken += 1
                standin._answering.wait()
                answer = standin.answer(request)
                try:
                    self.wfile.write(marshal.dumps(answer))
                except OSError:
                    # the client was cut by its time-out; what it asked for is done all the same
                    return

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(str(self.home / "socket"), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """The server is gone: clients are refused. Jobs go on."""
        if self._server:
            (self.home / "socket").unlink()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def hang(self) -> None:
        """Requests are taken and not answered, as when the server process is stopped."""
        self._answering.clear()

    @property
    def hung(self) -> bool:
        return not self._answering.is_set()

    def resume(self) -> None:
        """The hung server goes on, with everything that was asked in the meantime."""
        self._answering.set()

    def fail_node(self, node: int) -> None:
        """A node is lost, and noticed: its rerunable jobs are queued again, the others end with
        -20.
        """
        with self.lock:
            self.down_nodes.add(node)
            for job in self.jobs.values():
                if job.state == "R" and node in job.where:
                    self._lose(job, -20)

    def count(self, *names: str) -> int:
        """Number of the named commands that were run so far."""
        return sum(name in names for _, name, _ in self.calls)

    def wait_for(self, number: int, *states: str, seconds: float = 120.0) -> Job:
        """Block until a job is in one of these states."""
        end = time.monotonic() + seconds
        while number not in self.jobs or self.jobs[number].state not in states:
            if time.monotonic() > end:
                raise TimeoutError(f"job {number} is not {states}: {self.jobs.get(number)}")
            time.sleep(0.01)
        return self.jobs[number]

    # What the commands need

    def answer(self, request: dict[str, Any]) -> commands.Answer:
        """Run one command of a client."""
        with self.lock:
            self.calls.append((time.time(), request["command"], request["words"]))
            return commands.COMMANDS[request["command"]](self, request)

    def delete(self, job: Job, force: bool = False) -> None:
        """Delete a job that has not ended, as qdel does."""
        if job.state == "R" and not force:
            job.comment += f" and terminated by {job.owner}@{SERVER}"
            self._terminate(job, 271)
        elif job.state == "R":
            self._kill_at_once(job)
            job.exit_status = 265
            self._bury(job, 91, f" and terminated by {job.owner}@{SERVER}")
        else:
            self._bury(job, 91, " and terminated")

    # The scheduler

    def _schedule_for_ever(self) -> None:
        while not self._over.wait(self.config.cycle):
            with self.lock:
                for job in list(self.jobs.values()):
                    self._step(job)

    def _step(self, job: Job) -> None:
        now = time.time()
        if job.state == "Q":
            self._try_to_start(job)
        elif job.state == "R" and job.process is not None:
            code = job.process.poll()
            if code is not None and not (job.kill_at and session(job.process.pid)):
                self._begin_exit(job, code)
            elif job.kill_at is not None:
                if now >= job.kill_at:
                    signal_session(job.process.pid, signal.SIGKILL)
            elif job.walltime and now - job.started > job.walltime / self.config.speed:
                job.comment += " and exceeded resource walltime"
                self._terminate(job, -29)
        elif job.state == "E" and now >= job.leaves_exiting:
            killed, status = job.terminated is not None, job.exit_status
            words = "" if killed else " and failed" if status else " and finished"
            self._bury(job, 91 if job.terminated == 271 else 93 if status else 92, words)

    def _try_to_start(self, job: Job) -> None:
        if not self.config.queues[job.queue].started:
            job.comment = "Not Running: Queue not started."
            return
        where = self._place(job)
        if not where:
            job.comment = "Not Running: Insufficient amount of resource: ngpus "
            return
        if job.live_output and not job.output.parent.is_dir():
            job.state, job.substate, job.held = "H", 20, "s"
            job.run_count, job.exit_status = 21, -3
            job.comment = "job held, too many failed attempts to run"
            return
        job.where = where
        job.exit_status = job.kill_at = job.terminated = None
        job.started, job.ended = time.time(), None
        job.run_count += 1
        start(job, self.home / job.id)
        when = time.strftime("%a %b %d at %H:%M")
        job.state, job.substate = "R", 42
        job.comment = f"Job run at {when} on (node{where[0] + 1:02}:ncpus=1)"

    def _place(self, job: Job) -> list[int]:
        """Nodes with room for the chunks of a job, one for each; none where one finds no room."""
        limits = {"ncpus": self.config.ncpus, "ngpus": self.config.ngpus}
        free = {node: dict(limits) for node in set(range(self.config.nodes)) - self.down_nodes}
        for other in self.jobs.values():
            if other.state in {"R", "E"}:
                for node, chunk in zip(other.where, other.chunks, strict=True):
                    for key, value in chunk.items() if node in free else ():
                        free[node][key] -= value
        where: list[int] = []
        for chunk in job.chunks:
            room = [
                node
                for node, left in sorted(free.items())
                if node not in where and all(left[key] >= value for key, value in chunk.items())
            ]
            if not room:
                return []
            where.append(room[0])
        return where

    def _begin_exit(self, job: Job, code: int) -> None:
        status = code if code >= 0 else 256 - code
        job.exit_status = job.terminated if job.terminated is not None else status
        delivered = deliver(job, self.home / job.id)
        job.ended = time.time()
        job.leaves_exiting = job.ended + (0.05 if delivered else self.config.undeliverable)
        job.state, job.substate = "E", 51

    def _terminate(self, job: Job, status: int) -> None:
        if job.process is not None and job.kill_at is None:
            job.terminated = status
            job.kill_at = time.time() + self.config.kill_delay
            signal_session(job.process.pid, signal.SIGTERM)

    def _kill_at_once(self, job: Job) -> None:
        if job.process is not None:
            signal_session(job.process.pid, signal.SIGKILL)
            job.process.wait()

    def _lose(self, job: Job, status: int) -> None:
        self._kill_at_once(job)
        job.exit_status = status
        if job.rerunable:
            job.where, job.process = [], None
            job.state, job.substate = "Q", 10
        else:
            self._bury(job, 93, " and failed" if status == -4 else "")

    def _bury(self, job: Job, substate: int, words: str = "") -> None:
        job.ended = job.ended or time.time()
        job.state, job.substate = "F", substate
        job.comment += words if job.comment else ""
