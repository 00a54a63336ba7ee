"""A study from end to end: a question, a search, its checks, and a result in a folder."""

from dataclasses import asdict
from pathlib import Path

from caploc.checks import draw_own_curve, validate
from caploc.declaration import Study
from caploc.engine.api import HeadModel, RowEngine
from caploc.findings import StudyFindings, build_result, write_findings
from caploc.folder import CURVE, RESULT, write_json
from caploc.progress import Progress
from caploc.search import METHODS
from caploc.session import Session


def run_study(
    study: Study,
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    engine: RowEngine[HeadModel] | None = None,
) -> StudyFindings:
    """Search, check what was found, and write the result and its report.

    `engine` may be one already loaded for the study's model. Whatever was measured in `folder`
    before is used. Raises UserError for a mistake in the study; RunFailed if the machine gives up;
    rows already measured are kept.
    """
    with Session.open(study, folder, progress, command=command, engine=engine) as session:
        search = session.search(METHODS[session.study.method])
        checks = validate(session, search)
        curve = draw_own_curve(session, checks)
        result = build_result(session, search, checks, command)
        session.progress.start("writing the report", 0)
        if curve is not None:
            write_json(folder / CURVE, curve.as_dict())  # before the result, which ends a run
        findings = write_findings(folder, result, checks)
    checked = session.study
    if checked.track:
        from caploc.tracking import log_run

        title, files = f"{checked.task} {checked.method}", [findings.report, folder / RESULT]
        log_run(checked.track, title, asdict(checked), result, files)
    return findings
