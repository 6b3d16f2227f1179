"""Run every measurement, one after the other."""

from . import adapters

adapters.main()
