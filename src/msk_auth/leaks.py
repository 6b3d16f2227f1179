"""Receivers of GitHub's reports of leaked keys."""

from __future__ import annotations

from ._async.leaks import AsyncGitHubLeakReceiver
from ._leak_reports import GITHUB_KEYS_URL
from ._sync.leaks import GitHubLeakReceiver

__all__ = [
    "GITHUB_KEYS_URL",
    "AsyncGitHubLeakReceiver",
    "GitHubLeakReceiver",
]
