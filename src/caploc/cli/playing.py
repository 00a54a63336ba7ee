"""Open the playground in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console
from caploc.cli import completion
from caploc.cli.options import (
    AllowCode,
    Chat,
    Data,
    Device,
    Dtype,
    Gguf,
    IsolationName,
    Projections,
    Revision,
    Trust,
    allowed,
    check_isolation,
    tell_of_code,
)
from caploc.naming import placed

PORT = 8750


def ui(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A finished run, or a folder of runs of one model.", autocompletion=completion.runs
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Hugging Face id, local folder, or `demo`; else the run's.",
            autocompletion=completion.models,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A task to draw examples from; repeat for several.",
            autocompletion=completion.tasks,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes any free port.")] = PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    data: Data = None,
    chat_template: Chat = False,
    allow_code: AllowCode = False,
    isolation: IsolationName = "full",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
) -> None:
    """Knock heads out and watch the answers change, in a page on this machine.

    Examples:
        caploc ui runs/addition
        caploc ui --model demo --task demo/rhyming --port 0

    See also:
        locate, export
    """
    from caploc.errors import UserError
    from caploc.playground.setting import DEMO, make_setting, open_runs
    from caploc.tasks.catalog import TaskOptions, parse_data
    from caploc.workbench import ModelOptions

    try:
        from caploc.playground.app import address, describe_exposure, listen, serve
        from caploc.playground.playground import Playground
    except ModuleNotFoundError as error:
        raise UserError(
            f"The playground needs {error.name}; install it with `pip install 'caploc[ui]'`."
        ) from None

    options = TaskOptions(
        chat_template=chat_template, data=parse_data(data or []), allow_code=allow_code
    )
    named = None if model is None else placed(model)
    loading = ModelOptions(
        named or DEMO, device, dtype, revision, trust_remote_code, projections, gguf=gguf
    )
    tasks = [placed(name) for name in task or []]
    runs = open_runs(folder, allowed(True, trust_remote_code)) if folder else ()
    setting = make_setting(runs, named, loading, tasks, options)
    setting.check()
    with listen(host, port) as listening:
        if warning := describe_exposure(host):
            console.warn(warning)
        check_isolation(allow_code)
        tell_of_code(tasks)
        playground = Playground(setting)
        console.say(f"Playground: {address(host, listening)} (Ctrl-C ends it)")
        try:
            serve(playground, host, listening)
        except KeyboardInterrupt:
            console.say("The playground is closed.")
