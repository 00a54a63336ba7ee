"""Every mistake of the table, in its order."""

import wrong_data
import wrong_folders
import wrong_models
import wrong_options
from mistaking import MISTAKES

GROUPS = [each.GROUP for each in (wrong_models, wrong_options, wrong_data, wrong_folders)]
ORDERED = sorted(MISTAKES, key=lambda wrong: GROUPS.index(wrong.group))
QUICK = [wrong for wrong in ORDERED if not wrong.slow]
