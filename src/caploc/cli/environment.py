"""What holds for every command: exit codes, and the environment that is read."""

from caploc import console

ENVIRONMENT = """\
Exit codes:
    0    done
    1    failed by the machine's fault, or in part; what was measured is kept
    2    a mistake in what was asked; nothing was measured
    130  stopped by Ctrl-C (143: SIGTERM, 129: SIGHUP); nothing is lost

Environment:
    CAPLOC_CACHE          where fetched models lie (caploc in HF_HOME,
                          XDG_CACHE_HOME or ~/.cache)
    CAPLOC_TASKS          folders of your own task files, `:` between them
    HF_HOME, HF_TOKEN     where what the Hugging Face Hub has lies; the token
    HF_HUB_OFFLINE        1: ask the Hub for nothing, use what is here
    CUDA_VISIBLE_DEVICES  the GPUs that may be used
    OMP_NUM_THREADS       CPU threads
    RAY_ADDRESS           HOST:PORT of the cluster that `--workers ray` joins
    NO_COLOR              any value: no colours
"""


def environment() -> None:
    """List exit codes, and the environment variables that are read.

    Examples:
        caploc environment

    See also:
        doctor, models
    """
    console.say(ENVIRONMENT.rstrip())
