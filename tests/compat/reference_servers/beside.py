"""Environments written for `openreward` and for `ors-sdk`, served by that SDK's own server and by ours.

Both serve the same classes and get the same requests, so that a test shows the reference's fault and our correct
behaviour.

    python -m tests.compat.reference_servers.beside own|openreward|ors-sdk

Prints the server's address. The environments record their events in the file that a variable names.
"""

# Annotations must stay objects: both SDKs look at those of tools, and these refer to a local name.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false, reportUntypedBaseClass=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false, reportInvalidTypeForm=false
import asyncio
import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from pydantic import BaseModel

from tests.support.servers import serve_sdk

#: Variable with the file for environments' events.
JOURNAL = "BESIDE_JOURNAL"
#: Seconds for which a reference server keeps results, instead of 60.
LINGER = 0.2


def note(event: str, subject: object) -> None:
    """Write one line. One `write` of a short line to a file opened for appending is atomic."""
    with Path(os.environ[JOURNAL]).open("a") as file:
        file.write(f"{event} {subject}\n")


class Text(BaseModel):
    text: str = ""


class Seconds(BaseModel):
    seconds: float = 0.0


def environments(sdk: Any, prefix: str) -> list[type[Any]]:
    """Return the environments, made of one SDK's classes."""

    def said(text: str, **more: Any) -> Any:
        return sdk.ToolOutput(blocks=[sdk.TextBlock(text=text)], **more)

    class Bench(sdk.Environment):
        def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec)
            self.subject = task_spec.get("subject", "nobody")
            self.secret = secrets.get("key", "")
            self.is_set_up = False
            self.over = asyncio.Event()
            note("construct", self.subject)
            time.sleep(task_spec.get("construct", 0))
            note("constructed", self.subject)

        @classmethod
        def name(cls) -> str:
            return f"{prefix}{cls.__name__}"

        @classmethod
        def list_splits(cls) -> Any:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> Any:
            return [{"subject": "listed"}] * 3

        def get_prompt(self) -> Any:
            return [sdk.TextBlock(text=f"{self.subject} {self.is_set_up}")]

        async def setup(self) -> None:
            if "setup_fails" in self.task_spec:
                raise HTTPException(418) if self.task_spec["setup_fails"] == "teapot" else ValueError("cannot")
            if "setup_cancelled" in self.task_spec:
                raise asyncio.CancelledError
            await asyncio.sleep(self.task_spec.get("setup", 0))
            self.is_set_up = True
            note("set up", self.subject)

        async def teardown(self) -> None:
            note("torn down", self.subject)

        @sdk.tool
        async def echo(self, params: Text) -> sdk.ToolOutput:
            note("echo", self.subject)
            return said(params.text)

        @sdk.tool
        async def secret_is(self) -> sdk.ToolOutput:
            return said(self.secret)

        @sdk.tool
        async def lines(self) -> sdk.ToolOutput:
            return said("".join(f"        line {number}\n" for number in range(1000)))

        @sdk.tool
        async def cancelled(self) -> sdk.ToolOutput:
            raise asyncio.CancelledError

        @sdk.tool
        async def nap(self, params: Seconds) -> sdk.ToolOutput:
            note("nap", self.subject)
            try:
                await asyncio.sleep(params.seconds)
                return said("rested")
            finally:
                note("nap ended", self.subject)

        @sdk.tool
        def block(self, params: Seconds) -> sdk.ToolOutput:
            note("block", self.subject)
            time.sleep(params.seconds)
            note("block ended", self.subject)
            return said("unblocked")

        @sdk.tool
        async def nan(self) -> sdk.ToolOutput:
            return said("", reward=float("nan"))

        @sdk.tool
        async def surrogate(self) -> sdk.ToolOutput:
            return said("half \ud83d")

        @sdk.tool
        async def metadata(self) -> sdk.ToolOutput:
            note("metadata", self.subject)
            return said("done", metadata={"inner": [object()]})

        @sdk.tool
        async def leak(self) -> sdk.ToolOutput:
            raise ValueError("password=hunter2")

        @sdk.tool
        async def win(self) -> sdk.ToolOutput:
            return said("won", reward=1.0, finished=True)

    class Base(Bench):
        @classmethod
        def list_splits(cls) -> Any:
            return ["train", "test"]

    class Derived(Base):
        @classmethod
        def list_splits(cls) -> Any:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> Any:
            return [{"subject": "derived"}]

    class Listing(Bench):
        """Its task says which of the unshared tools a session has."""

        def list_task_tools(self) -> Any:
            if not self.is_set_up and "listed" not in self.task_spec:
                raise RuntimeError("nothing is listed")
            specs = [
                sdk.ToolSpec(name=name, description="of this task", input_schema=None)
                for name in self.task_spec["listed"]
            ]
            return sdk.ListToolsOutput(tools=specs)

        @sdk.tool(shared=False)
        async def hint(self) -> sdk.ToolOutput:
            """Return the class's hint."""
            return said("hint")

        @sdk.tool(shared=False)
        async def solve(self) -> sdk.ToolOutput:
            return said("solved", reward=1.0, finished=True)

    class Dynamic(Bench):
        """Responds to names that are not tools, and sees every call before and after the SDK does."""

        async def _call_tool(self, name: str, input: Any) -> Any:
            note(f"called-{name}", self.subject)
            kind, _, rest = name.partition(".")
            if kind == "made":
                text = f"{rest} {sorted(input.items())}"
                input["changed"] = True
                return sdk.RunToolOutput(sdk.RunToolSuccess(output=said(text, reward=0.5, metadata={"name": rest})))
            if kind == "finish":
                if input.get("second"):
                    await self.over.wait()
                self.over.set()
                return sdk.RunToolOutput(sdk.RunToolSuccess(output=said("over", reward=1.0, finished=True)))
            if kind == "refuse":
                return sdk.RunToolOutput(sdk.RunToolError(error="not now"))
            if kind == "raise":
                raise KeyError("in the method")
            if kind == "bare":
                return said("bare")
            if kind == "alias":
                return await super()._call_tool(rest, input)
            result = await super()._call_tool(name, input)
            if result.root.ok and type(result.root.output) is sdk.ToolOutput:
                result.root.output.blocks.append(sdk.TextBlock(text="seen"))
            return result

        @sdk.tool
        def thread(self) -> sdk.ToolOutput:
            return said(threading.current_thread().name)

    return [Bench, Base, Derived, Listing, Dynamic]


def main() -> None:
    which = sys.argv[1]
    modules = {"openreward": "openreward.environments", "ors-sdk": "ors"}
    if which == "own":
        from ors_server import Server

        sdks = [importlib.import_module(module) for module in modules.values()]
        hosted = [cls for sdk, prefix in zip(sdks, ("P", "O"), strict=True) for cls in environments(sdk, prefix)]
        Server(hosted, return_errors="none").serve(on_ready=lambda url: print(url, flush=True))
        return
    sdk: Any = importlib.import_module(modules[which])
    reconnect: Any = importlib.import_module(
        {"openreward": "openreward.environments.reconnect", "ors-sdk": "ors._reconnect"}[which]
    )
    reconnect.LINGER_SECONDS = LINGER
    serve_sdk(sdk.Server(environments(sdk, {"openreward": "P", "ors-sdk": "O"}[which]), return_errors="none").app)


if __name__ == "__main__":
    main()
