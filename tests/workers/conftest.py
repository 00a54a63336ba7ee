"""Where tests of workers run: on this machine alone."""

import os

# Ray reads it when it is imported: every node of a test is bound to 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
