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

from . import answers
from .asked import place
from .model import Config, Job
from .node import deliver, say_in_output, session, signal_session, start

_ATTEMPTS = 21


class StandIn:
    """A PBS of its own in a temporary folder. `bin` holds the commands; `calls` lists every command
    that was run.

    `taken` counts what clients have asked so far, also of a hung server.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.home = Path(tempfile.mkdtemp(prefix="pbs"))
        self.bin = self.home / "bin"
        self.spool = self.home / "spool"
        self.calls: list[tuple[float, str, list[str]]] = []
        self.jobs: dict[int, Job] = {}
        self.purged: set[int] = set()
        self.down_nodes: set[int] = set()
        self.lock = threading.RLock()
        self._answering = threading.Event()
        self._answering.set()
        self.taken = 0
        self.last = 0
        self._over = threading.Event()
        self._server: socketserver.BaseServer | None = None
        self.spool.mkdir()
        answers.install(self.bin)

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
            if job.process:
                signal_session(job.process.pid, signal.SIGKILL)
                job.process.wait()
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

        (self.home / "socket").unlink(missing_ok=True)
        self._server = Server(str(self.home / "socket"), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """The server is gone: clients are refused. Jobs go on."""
        if self.config.client == "old":
            (self.home / "old").touch()
        if self._server:
            (self.home / "socket").unlink(missing_ok=True)
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
                if job.state == "R" and any(found == node for found, _ in job.where):
                    self._kill_at_once(job)
                    job.exit_status = -20
                    if job.rerunable:
                        self._requeue(job)
                    else:
                        self._bury(job, 93)

    def restart_mom(self, job_id: int) -> None:
        """The daemon of a job's node is restarted: a rerunable job runs again, another ends with
        -4.
        """
        with self.lock:
            job = self.jobs[job_id]
            self._kill_at_once(job)
            if job.rerunable:
                self._requeue(job)
                job.exit_status = None
            else:
                job.exit_status = -4
                self._bury(job, 93, " and failed")

    def purge(self, job_id: int) -> None:
        """The history of a job runs out."""
        with self.lock:
            self.purged.add(job_id)

    def count(self, *names: str) -> int:
        """How many of the named commands were run so far."""
        return sum(name in names for _, name, _ in self.calls)

    def wait_for(self, job_id: int, *states: str, seconds: float = 120.0) -> Job:
        """Block until a job is in one of these states."""
        end = time.monotonic() + seconds
        while job_id not in self.jobs or self.jobs[job_id].state not in states:
            if time.monotonic() > end:
                found = self.jobs[job_id].state if job_id in self.jobs else "not there"
                raise TimeoutError(f"job {job_id} is {found}, not {states}")
            time.sleep(0.01)
        return self.jobs[job_id]

    # What the commands need

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one command of a client: {"code", "out", "err"}."""
        with self.lock:
            self.calls.append((time.time(), request["command"], request["words"]))
            code, out, err = answers.COMMANDS[request["command"]](self, request)
            return {"code": code, "out": out, "err": err}

    def next_number(self) -> int:
        """A new job number."""
        self.last += 1
        return self.last

    def delete(self, job: Job, force: bool = False) -> None:
        """What qdel does to a job that has not ended."""
        by = f" and terminated by {job.owner}@pbs01"
        if force or job.state != "R":
            running = job.state == "R"
            if running:
                self._kill_at_once(job)
                job.exit_status = 265
            self._bury(job, 91, by if running else " and terminated" if job.comment else "")
            return
        job.comment = f"{job.comment or ''}{by}"
        self._terminate(job, 271)

    # The scheduler

    def _schedule_for_ever(self) -> None:
        while not self._over.wait(self.config.cycle):
            with self.lock:
                for job in list(self.jobs.values()):
                    self._step(job)

    def _step(self, job: Job) -> None:
        now = time.time()
        if job.state == "Q" and not job.index:  # arrays are listed and not run
            self._try_to_start(job)
        elif job.state == "W" and now >= (job.not_before or 0):
            job.change("Q", 10)
        elif job.state == "H" and job.after is not None and job.held == "s":
            self._look_at_parent(job, *job.after)
        elif job.state == "R" and job.process is not None:
            code = job.process.poll()
            if code is not None and not (job.kill_at and session(job.process.pid)):
                self._begin_exit(job, code)
            elif job.kill_at is not None:
                if now >= job.kill_at:
                    signal_session(job.process.pid, signal.SIGKILL)
            elif (
                job.walltime is not None
                and now - (job.started or now) > job.walltime / self.config.speed
            ):
                words = (
                    f"=>> PBS: job killed: walltime {job.walltime} exceeded limit {job.walltime}\n"
                )
                say_in_output(job, self.spool / job.id, words)
                job.comment = f"{job.comment} and exceeded resource walltime"
                self._terminate(job, -29)
        elif job.state == "E" and job.leaves_exiting is not None and now >= job.leaves_exiting:
            status = job.exit_status or 0
            killed = job.terminated is not None
            words = "" if killed else " and failed" if status else " and finished"
            self._bury(job, 91 if job.terminated == 271 else 93 if status else 92, words)

    def _look_at_parent(self, job: Job, kind: str, number: int) -> None:
        parent = self.jobs.get(number)
        if parent is None or parent.state != "F":
            return  # an unknown one is waited for too
        if kind == "afterany" or (kind == "afterok") == (parent.exit_status == 0):
            job.after, job.held = None, "n"
            job.change("Q", 10)
        else:
            self._bury(job, 92)

    def _try_to_start(self, job: Job) -> None:
        queue = self.config.queues[job.queue]
        if not queue.started:
            job.comment = "Not Running: Queue not started."
            return
        where, short = place(job, self.jobs.values(), self.config, self.down_nodes)
        if where is None:
            job.comment = f"Not Running: Insufficient amount of resource: {short} "
            return
        job.where = where
        if "d" in job.keep and not job.output.parent.is_dir():
            job.where = []
            job.run_count, job.exit_status, job.held = _ATTEMPTS, -3, "s"
            job.change("H", 20, "job held, too many failed attempts to run")
            return
        self._start(job)

    def _start(self, job: Job) -> None:
        start(job, self.spool / job.id)
        job.run_count += 1
        job.exit_status = job.kill_at = job.terminated = None
        when = time.strftime("%a %b %d at %H:%M", time.localtime(job.started))
        job.change("R", 42, f"Job run at {when} on {job.vnodes()}")

    def _begin_exit(self, job: Job, code: int) -> None:
        job.ended = time.time()
        status = code if code >= 0 else 256 - code
        job.exit_status = job.terminated if job.terminated is not None else status
        job.delivered = deliver(job, self.spool / job.id)
        job.leaves_exiting = job.ended + (
            self.config.exiting if job.delivered else self.config.undeliverable
        )
        job.change("E", 51)

    def _terminate(self, job: Job, status: int) -> None:
        if job.process is None or job.kill_at is not None:
            return
        job.terminated = status
        job.kill_at = time.time() + self.config.kill_delay
        signal_session(job.process.pid, signal.SIGTERM)

    def _kill_at_once(self, job: Job) -> None:
        if job.process is not None:
            signal_session(job.process.pid, signal.SIGKILL)
            job.process.wait()
        job.ended = time.time()

    def _requeue(self, job: Job) -> None:
        job.where, job.started, job.process = [], None, None
        job.change("Q", 10)

    def _bury(self, job: Job, substate: int, words: str = "") -> None:
        job.ended = job.ended or time.time()
        job.change("F", substate, f"{job.comment}{words}" if job.comment else None)
