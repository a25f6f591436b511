"""A service that compiles its model at the first start, loads it at all others, and
goes on without a plugin that is broken.

    pip install fastapi uvicorn
    MODEL=model.onnx EPS=QNN,AcmeNpu uvicorn --app-dir examples --factory \
        cached_service:create_app

`EPS` are names of EPs in order of priority. An EP that cannot be imported is skipped.
One that fails, hangs or crashes in a compile does so in a process of its own, and the
model is compiled again without it; the CPU EP is always there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request

import epctx_core as epctx


def open_session(
    model: str, eps: list[str]
) -> tuple[epctx.InferenceSession, dict[str, str]]:
    """Return a session of the model, and the EPs that failed with their errors."""
    failed: dict[str, str] = {}
    while True:
        options = epctx.SessionOptions()
        options.add_session_config_entry("ep.isolate", "compile")
        options.add_session_config_entry("ep.compile_timeout", "600")
        for ep in eps:
            options.add_provider(ep, optional=True)
        try:
            return epctx.load_or_compile(model, options), failed
        except (epctx.PluginError, epctx.EPFail) as error:
            broken = [ep for ep in eps if is_named(ep, error.ep)]
            if not broken:
                raise
            failed |= dict.fromkeys(broken, error.message)
            eps = [ep for ep in eps if ep not in broken]


def is_named(ep: str, full: str | None) -> bool:
    """Tell if an EP of the host is the one that an error names."""
    # A host may write `acmenpu`, or `epctx-acme:AcmeNpu` with its distribution.
    name = ep.rpartition(":")[2].lower()
    return (full or "").lower() in {name, f"{name}executionprovider"}


def create_app(model: str | None = None, eps: list[str] | None = None) -> FastAPI:
    """Return the application; without arguments they are read from the environment."""
    model = model or os.environ["MODEL"]
    eps = eps if eps is not None else os.environ.get("EPS", "QNN").split(",")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # In a thread: a compile takes minutes, and signals are to be answered.
        session, failed = await asyncio.to_thread(open_session, model, eps)
        with session:
            app.state.session, app.state.failed = session, failed
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/healthz")
    def healthz(request: Request) -> dict[str, Any]:
        """Say which EPs serve, and why others do not."""
        state = request.app.state
        return {"eps": state.session.get_providers(), "failed": state.failed}

    @app.post("/predict")
    def predict(request: Request, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Run the model; FastAPI calls this in threads, and sessions may be shared."""
        session = request.app.state.session
        feeds = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
        try:
            outputs = session.run(None, feeds)
        except epctx.InvalidArgument as error:
            raise HTTPException(422, error.message) from error
        names = [value.name for value in session.get_outputs()]
        return {n: y.tolist() for n, y in zip(names, outputs, strict=True)}

    return app
