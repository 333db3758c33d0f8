"""A Kafka broker for the tests, as jars in a folder of this virtual environment: ``servers/kafka``.

Best effort, as ``servers.py``: without it Kafka's tests are skipped and say why. What else a broker needs (Scala, Jackson,
logging, codecs) is among pyspark's jars. A second run finds everything in place and asks nobody.
"""

# ruff: noqa: INP001 - a program

from __future__ import annotations

from maven import put_in_place

# To move on: what `java -verbose:class kafka.Kafka` loads that pyspark has not, and `sha256sum` of it.
PINS = {
    (
        "net.sourceforge.argparse4j",
        "argparse4j",
        "0.7.0",
    ): "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    (
        "org.hdrhistogram",
        "HdrHistogram",
        "2.2.2",
    ): "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    (
        "com.github.ben-manes.caffeine",
        "caffeine",
        "3.2.0",
    ): "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    (
        "commons-validator",
        "commons-validator",
        "1.9.0",
    ): "c3c14748e2d78db58df88808740711bd643b32c45ffa7b8a739f00fb467cd7d7",
    (
        "com.dynatrace.hash4j",
        "hash4j",
        "0.22.0",
    ): "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    (
        "net.sf.jopt-simple",
        "jopt-simple",
        "5.0.4",
    ): "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    (
        "org.apache.kafka",
        "kafka-clients",
        "4.1.1",
    ): "00247122a572c3d3ae4eb60a50192a5811bc0181f51923d13018600f892e821d",
    (
        "org.apache.kafka",
        "kafka-coordinator-common",
        "4.1.1",
    ): "2072fc1ce7e0505149bba22a463a5909a899c6235c4fa696f15c21194a7baf60",
    (
        "org.apache.kafka",
        "kafka-group-coordinator",
        "4.1.1",
    ): "3eb5a673b69d5992cfa86c5436f39adbf4ce284046a4c999ec6af0a8e31c5589",
    (
        "org.apache.kafka",
        "kafka-group-coordinator-api",
        "4.1.1",
    ): "3d1801d2329dcf7d273796a034d61e6c7e0f851f384d0afbdd3a2e6cbd17a968",
    (
        "org.apache.kafka",
        "kafka-metadata",
        "4.1.1",
    ): "a689665751415b6456de1ecb013042cb7ba99ac68fd8c3e8bf28e098feb43218",
    (
        "org.apache.kafka",
        "kafka-raft",
        "4.1.1",
    ): "4810c93d93d1935dd54de61c5ba130f501c7fe11bc49ccd3ee05ec857818a72a",
    (
        "org.apache.kafka",
        "kafka-server",
        "4.1.1",
    ): "9f6aff422855491aad54326eca8d604163d6d3a6507cc48ffe3ce6de73caf79a",
    (
        "org.apache.kafka",
        "kafka-server-common",
        "4.1.1",
    ): "207edecd8322cf6c13d76d84addea7fd0ec441dc8d698cf69df43210ccdc0a94",
    (
        "org.apache.kafka",
        "kafka-share-coordinator",
        "4.1.1",
    ): "e6bec53428c77bf6579321836d482542a93575f7c08e860a26c9f2c7f6059dac",
    (
        "org.apache.kafka",
        "kafka-storage",
        "4.1.1",
    ): "1f85b82853eaec0143efbef7e3a4d4be8929ff83a386326431e0c2d0a557e58c",
    (
        "org.apache.kafka",
        "kafka-storage-api",
        "4.1.1",
    ): "8c0a712472185d706c6bf5ae24bf5d84a8e396fd4745c708e6146a415f7fa7f7",
    (
        "org.apache.kafka",
        "kafka-tools-api",
        "4.1.1",
    ): "542b08fe20cf872a2d866acdff61ea338b469219dc2ebfae727a1d9ea5737e1a",
    (
        "org.apache.kafka",
        "kafka-transaction-coordinator",
        "4.1.1",
    ): "a261b5730ac9e3205df7af5d45180d851e9d5f729ce1275c67511a6f51f73755",
    (
        "org.apache.kafka",
        "kafka_2.13",
        "4.1.1",
    ): "e89428126cc7630a802123ba27aac4442816840b66d60670226feaff65f24fd1",
    (
        "com.yammer.metrics",
        "metrics-core",
        "2.2.0",
    ): "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    (
        "org.pcollections",
        "pcollections",
        "4.0.2",
    ): "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    ("com.google.re2j", "re2j", "1.8"): "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    (
        "com.typesafe.scala-logging",
        "scala-logging_2.13",
        "3.9.5",
    ): "87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545",
}


if __name__ == "__main__":
    put_in_place("kafka", PINS)
