"""What things cost, one question a file: `python -m benchmarks` lists them, `make bench` measures them all.

Every figure comes from one run in which the things compared take turns, round by round, so that whatever else the
machine does meets all of them alike. A ratio is therefore made within each round, and shown as the median of all
rounds with its quartiles; absolute times belong to one machine and one day.

A measurement is a function from a `Scale` to a `Result`. It prints nothing: the result is a table and a JSON file,
and the documentation draws its charts from those files.
"""
