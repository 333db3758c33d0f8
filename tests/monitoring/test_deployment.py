"""The files of examples/deployment fit the program, and a real Prometheus reads them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiorepl.cli import command
from aiorepl.cli.log import Log
from aiorepl.monitoring.samples import METRICS
from aiorepl.spark.reading.metrics import METRICS as QUERY_METRICS

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
METRIC = re.compile(r"\baiorepl_[a-z_]+")


DASHBOARDS = ("grafana.json", "grafana-spark.json")


@pytest.mark.parametrize("name", ["alerts.yaml", *DASHBOARDS])
def test_the_metrics_exist(name):
    """Alerts and dashboards name no metric that there is not, and only labels of that metric."""
    known = {metric.name: {"pipeline", *metric.labels} for metric in METRICS}
    known |= {metric.name: set(metric.labels) for metric in QUERY_METRICS}
    for metric in METRICS:
        if metric.kind == "histogram":
            known |= {f"{metric.name}_{part}": known[metric.name] for part in ("bucket", "count", "sum")}
    text = (FOLDER / name).read_text()
    assert METRIC.findall(text)
    for found in re.finditer(r"\b(aiorepl_[a-z_]+)(?:\{([^{}]*)\})?", text.replace('\\"', '"')):
        assert found[1] in known, found[1]
        assert set(re.findall(r"(\w+)=~?\"", found[2] or "")) <= known[found[1]], found[0]


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml", "prometheus.yaml"])
def test_yaml(name):
    """The file is one YAML document."""
    assert yaml.safe_load((FOLDER / name).read_text())


def test_the_commands():
    """The unit and the image call the program as it can be called."""
    unit = re.search(r"^ExecStart=\S+/aiorepl (.*)$", (FOLDER / "aiorepl.service").read_text(), re.MULTILINE)
    image = re.search(r"^CMD (\[.*\])$", (FOLDER / "Containerfile").read_text(), re.MULTILINE)
    assert unit
    assert image
    for arguments in (shlex.split(unit[1]), json.loads(image[1])):
        context = command.make_context("aiorepl", list(arguments), obj=Log())
        name, called, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert "run" == name
        assert called is not None
        assert called.make_context(name, rest, parent=context).params["http"]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on PATH")
async def test_a_real_prometheus(troubled, tmp_path, unused_tcp_port):
    """It accepts the alerts, scrapes the pipeline, finds the sink that has stopped, and answers each query of the dashboard."""
    configuration = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    configuration["rule_files"] = [str(FOLDER / "alerts.yaml")]
    configuration["scrape_configs"][0]["static_configs"][0]["targets"] = [
        troubled.url.removeprefix("http://")
    ]
    configuration["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yaml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{unused_tcp_port}",
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )

    def get(path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{unused_tcp_port}/api/v1/{path}", timeout=60
        ) as answer:
            return json.load(answer)["data"]

    def alerts() -> set[tuple[str, str]]:
        try:
            found = get("alerts")["alerts"]
        except OSError:
            return set()
        return {(alert["labels"]["alertname"], alert["labels"].get("sink", "")) for alert in found}

    try:
        async with asyncio.timeout(60):
            while ("AioreplSinkStopped", "broken") not in await asyncio.to_thread(alerts):
                assert process.returncode is None
                await asyncio.sleep(0.1)
        panels = [panel for name in DASHBOARDS for panel in json.loads((FOLDER / name).read_text())["panels"]]
        queries = [target["expr"] for panel in panels for target in panel["targets"]]
        for query in queries:
            asked = urllib.parse.urlencode(
                {"query": query.replace("$pipeline", ".*").replace("$query", ".*")}
            )
            assert "vector" == (await asyncio.to_thread(get, f"query?{asked}"))["resultType"], query
        rows = await asyncio.to_thread(get, "query?query=aiorepl_table_rows_total")
        assert [("public.items", "insert", "1")] == [
            (each["metric"]["table"], each["metric"]["kind"], each["value"][1]) for each in rows["result"]
        ]
    finally:
        process.kill()
        await process.wait()
