"""Run every measurement, one after the other."""

from . import adapters, growth, scan, verification

for title, measurement in (
    ("One verification, in process", verification),
    ("One request, in process", adapters),
    ("From a thousand keys to a million", growth),
    ("Scanning for keys", scan),
):
    print(f"\n{title}\n")
    measurement.main()
