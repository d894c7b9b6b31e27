"""Runs `make soak`: a million connections opened and closed; with MINUTES, thousands at a time while parts fail."""

from __future__ import annotations

import os
import sys

from tests.programs.soak import connections, endurance

minutes = os.environ.get("MINUTES")
sys.exit(endurance.main(float(minutes)) if minutes else connections.main())
