"""Debezium Engine, for benchmarks and for a test of the format ``debezium``: jars in the folder ``debezium`` of this virtual environment.

Best effort: without it ``make bench`` goes on with the others and says why, and the test is skipped. The jars come from Maven Central, each has to
have the hash below. A second run finds everything in place and asks nobody.
"""

# ruff: noqa: INP001, T201 - a program

from __future__ import annotations

import sys

from fetching import CannotBeHad, environment
from maven import complete, fetch

from aiorepl.errors import ConfigurationError

# What `java -Xlog:class+load` names of all that debezium-embedded and debezium-connector-postgres depend on, a logger
# that says errors only, and a compiler, since a Java runtime has none. To move on: that, and `sha256sum` of each.
LOCK = """
com.datadoghq sketches-java 0.8.2 b24c3d175556eb381ef2b2f0a7dffe7cb1fb7a9f893f41260822b5ec6cb13cca
com.fasterxml.jackson.core jackson-annotations 2.21 53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b
com.fasterxml.jackson.core jackson-core 2.21.2 12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b
com.fasterxml.jackson.core jackson-databind 2.21.2 8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849
com.fasterxml.jackson.module jackson-module-blackbird 2.21.2 5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e
io.debezium debezium-api 3.6.3.Final a91cec9b549c77538438aa6aa4b1090c1355de7b832afcb530bf1380bb5bb47e
io.debezium debezium-config 3.6.3.Final c3b6e4f8d2f1073a825ae27c8dd36e03b40cd479515601e068f461ff6a1c885c
io.debezium debezium-connector-common 3.6.3.Final 9dbc002de4474c68a456e86863ea86d560376c434d73dfc8b0c86167d0abf4a7
io.debezium debezium-connector-postgres 3.6.3.Final b66e6fd8a36460d3edde2b04c72c99505b60c5bc4a049e5d48bc5d039b46f7d9
io.debezium debezium-embedded 3.6.3.Final e1ebba14d967dc478992ba58715d603a3a81a49a3beac4dac3b5f28d534f876e
io.debezium debezium-openlineage-api 3.6.3.Final ee746ebedb622454f71f29a09efff9f40c5107571d6ea534dc1c66d4c43eebfe
io.debezium debezium-util 3.6.3.Final cc39a8d1f570c49656cbe3176fcc8976f8d20ec053260c3eeba56e18d48e9c9b
org.apache.kafka connect-api 4.3.0 7938f71e76e3b03cfba284a987a07d925533710166499264652e05eaba709429
org.apache.kafka connect-json 4.3.0 4af42f973b7ed4def6d394055e9b46ea7da38f69c9d5a45fa4614b492a01ad2e
org.apache.kafka connect-runtime 4.3.0 9c4a4a815302a23db37785729594f6362719fda62e6a74d812d1e2719995ec99
org.apache.kafka kafka-clients 4.3.0 97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1
org.apache.maven maven-artifact 3.9.15 f154c31f15ac97c37b9cdf9f8d63cde5053c470d2daf54df7dfd3bb3c9e501c6
org.eclipse.jdt ecj 3.46.100 74c93172475fee0cd4e6eefb44233516dd40525642da35d009146d97ea598229
org.postgresql postgresql 42.7.13 6e0e4cc2d8cae902084f8a2b18728b073a6fd9d1f87c9d8bff8f298c18185b93
org.slf4j slf4j-api 1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
org.slf4j slf4j-simple 1.7.36 2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f
"""


def pins() -> dict[tuple[str, str, str], str]:
    """The lock, read."""
    lines = (line.split() for line in LOCK.split("\n") if line)
    return {(organisation, name, version): digest for organisation, name, version, digest in lines}


def main() -> None:
    """Fetch what is missing."""
    folder = environment() / "debezium"
    try:
        if not complete(folder, pins()):
            fetch(folder, pins())
            print(f"debezium.py: Debezium Engine is in {folder}", file=sys.stderr)
    except (CannotBeHad, ConfigurationError) as reason:
        print(f"debezium.py: no Debezium Engine: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
