"""`python -m veriward` is the command line."""

import sys

from veriward.cli import main

sys.exit(main())
