"""The alert rules and the dashboard in `deploy/`: Prometheus accepts them, the rules fire, and the metrics exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from task_service.observability import Metrics

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = DEPLOY / "prometheus-alerts.yml"
DASHBOARD = DEPLOY / "grafana-dashboard.json"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: apt-get install prometheus")
    return found


def _expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def _run(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_alerts(promtool: str) -> None:
    _run(promtool, "check", "rules", RULES, folder=DEPLOY)


def test_the_alerts_fire_when_they_should_and_not_before(promtool: str, tmp_path: Path) -> None:
    for file in (RULES, Path(__file__).with_name("alerts.yml")):
        shutil.copy(file, tmp_path)
    _run(promtool, "test", "rules", "alerts.yml", folder=tmp_path)


def test_prometheus_accepts_the_expressions_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    """As recording rules, with values in place of Grafana's variables."""
    rules = [
        {
            "record": f"panel_{number}",
            "expr": each.replace("$__rate_interval", "5m").replace("$job", "task-service"),
        }
        for number, each in enumerate(_expressions())
    ]
    # JSON is YAML.
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )
    _run(promtool, "check", "rules", "rules.yml", folder=tmp_path)


def test_every_metric_of_the_alerts_and_the_dashboard_exists() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/", 200, 0.1)
    metrics.refusals.labels("key_unknown").inc()
    metrics.set_runs({"queued": 1})
    metrics.runs.ended("failed", 1.0)
    exist = set(re.findall(r"^[a-z_]+", metrics.render().decode(), re.MULTILINE))
    text = RULES.read_text("utf-8") + "\n".join(_expressions())
    named = set(re.findall(r"\b(?:task_service|process)_[a-z_]+", text))
    assert named - exist == set()
    assert len(named) >= 12
