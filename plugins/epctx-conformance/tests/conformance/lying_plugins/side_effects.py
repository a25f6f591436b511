"""EPs with side effects on the host's process and machine."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider


class Meddling(HonestProvider):
    """Has a side effect whenever it makes a graph runnable."""

    def runnable(self, graph):
        self.meddle()
        return super().runnable(graph)


@lie("compiling_loading_and_running_write_only_with_the_writer_and_in_scratch")
class WritesIntoTheCurrentFolder(Meddling):
    """Writes a log into whatever folder the host is in."""

    def meddle(self):
        Path("acme.log").write_text("compiled", encoding="utf-8")


@lie("compiling_loading_and_running_write_only_with_the_writer_and_in_scratch")
class WritesATemporaryFile(Meddling):
    """Writes beside `scratch()`, into the folder for temporary files."""

    def meddle(self):
        with tempfile.NamedTemporaryFile(prefix="acme") as file:
            file.write(b"compiled")


@lie("compiling_loading_and_running_write_only_with_the_writer_and_in_scratch")
class WritesItsOwnCache(Meddling):
    """Keeps a cache in the user's home."""

    def meddle(self):
        folder = Path("~/.cache/acme").expanduser()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)


@lie("compiling_loading_and_running_do_not_use_the_network")
class CallsHome(Meddling):
    """Reports its compiles to a server."""

    def meddle(self):
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.1)
            connection.connect(("127.0.0.1", 9))


@lie("compiling_loading_and_running_start_no_program")
class StartsAProgram(Meddling):
    """Asks another program which chip this is."""

    def meddle(self):
        subprocess.run(["true"], check=False)


@lie("it_prints_nothing_to_stdout")
class PrintsToStdout(Meddling):
    """Says what it does where the host prints its results."""

    def meddle(self):
        sys.stdout.write("acme: compiled\n")


@lie("compiling_loading_and_running_do_not_change_the_process")
class ChangesTheCurrentFolder(Meddling):
    """Goes where its tools are."""

    def meddle(self):
        os.chdir("/")


@lie("compiling_loading_and_running_do_not_change_the_process")
class ChangesTheEnvironment(Meddling):
    """Sets a variable for its library."""

    def meddle(self):
        os.environ["ACME_QUIET"] = "1"


@lie("compiling_loading_and_running_do_not_change_the_process")
class TakesSignals(Meddling):
    """Handles Ctrl-C itself."""

    def meddle(self):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@lie("compiling_loading_and_running_do_not_change_the_process")
class ConfiguresLogging(Meddling):
    """Turns on everybody's log."""

    def meddle(self):
        logging.getLogger().setLevel(logging.DEBUG)


@lie("compiling_loading_and_running_do_not_change_the_process")
class SilencesWarnings(Meddling):
    """Turns off everybody's warnings."""

    def meddle(self):
        warnings.simplefilter("ignore")


@lie("compiling_loading_and_running_do_not_change_the_process")
class SeedsRandomNumbers(Meddling):
    """Makes everybody's random numbers equal."""

    def meddle(self):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - it is the state of all that it seeds


@lie("compiling_loading_and_running_do_not_change_the_process")
class IgnoresFloatingPointErrors(Meddling):
    """Changes what numpy does about division by zero."""

    def meddle(self):
        np.seterr(all="ignore")


@lie("compiling_loading_and_running_do_not_change_the_process")
class ExtendsThePath(Meddling):
    """Puts a folder of its own before all others on the path of imports."""

    def meddle(self):
        sys.path.insert(0, "/opt/acme/python")
