"""Fuzzes the reader of a server's config.pbtxt: `python -m tests.fuzz.fuzz_config [SECONDS [SEED [CASE]]]`."""

from tests.fuzz import fuzz_files

if __name__ == "__main__":
    fuzz_files.main("config", "config")
