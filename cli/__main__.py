"""`python -m tfm.cli` is `tfm`."""

import sys

from tfm.cli.main import main

sys.exit(main())
