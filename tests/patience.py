"""How long tests wait for what must happen: longer where GODWIT_TEST_PATIENCE says that a machine is slow."""

import os

DEADLINE_S = 60.0 * float(os.environ.get("GODWIT_TEST_PATIENCE", "1"))
