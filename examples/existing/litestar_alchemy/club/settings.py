import os

DATABASE_URL = os.environ.get("CLUB_DATABASE_URL", "sqlite+aiosqlite:///club.db")
SECRET = os.environ.get("CLUB_SECRET", "change this, in development too: thirty-two bytes")
# argon2's cost in KiB; the tests take the least.
HASH_MEMORY = int(os.environ.get("CLUB_HASH_MEMORY", "65536"))
