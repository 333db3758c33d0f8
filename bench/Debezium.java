import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;

/**
 * Debezium Engine reading a slot: every row as an event in JSON, counted by what was done to it.
 *
 * <p>{@code java -cp … Debezium SLOT ROWS [FILE [NAME=VALUE…]]}, with the database in libpq's environment variables. Ends
 * after that many records, and prints how many there were. With a file, each event is a line of it. With settings of the
 * connector, a line is a record instead: topic, key and value with tabs between them; a tombstone has an empty value.
 */
final class Debezium implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final String OP = "\"op\":\"";
    private static final Map<Character, String> KINDS = Map.of('c', "insert", 'u', "update", 'd', "delete");

    private final Map<String, Long> seen = new TreeMap<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private long left;
    private final BufferedWriter file;
    private final boolean records;
    private volatile String failure;

    private Debezium(long rows, BufferedWriter file, boolean records) {
        left = rows;
        this.file = file;
        this.records = records;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedWriter file = arguments.length > 2 ? Files.newBufferedWriter(Path.of(arguments[2])) : null;
        Debezium consumer = new Debezium(Long.parseLong(arguments[1]), file, arguments.length > 3);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(settings(arguments))
            .using(consumer::completed)
            .notifying(consumer)
            .build();
        Thread thread = new Thread(engine, "engine");
        thread.start();
        consumer.ended.await();
        if (consumer.failure != null) {
            System.err.println("Debezium ended: " + consumer.failure);
            System.exit(1);
        }
        // What came behind the last row would be counted as well.
        engine.close();
        thread.join();
        System.out.println(consumer.found());
        System.exit(0);
    }

    private static Properties settings(String[] arguments) {
        Map<String, String> environment = System.getenv();
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "name", "bench",
            "topic.prefix", "bench",
            "connector.class", "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname", environment.get("PGHOST"),
            "database.port", environment.get("PGPORT"),
            "database.user", environment.get("PGUSER"),
            "database.password", environment.get("PGPASSWORD"),
            "database.dbname", environment.get("PGDATABASE")
        ));
        settings.putAll(Map.of(
            // Slot and publication are there. Without an offset and a snapshot it begins where the slot does.
            "plugin.name", "pgoutput",
            "slot.name", arguments[0],
            "publication.name", "bench",
            "publication.autocreate.mode", "disabled",
            "snapshot.mode", "no_data",
            "offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            // One event for a row, with nothing about its types.
            "tombstones.on.delete", "false",
            "converter.schemas.enable", "false"
        ));
        settings.putAll(Map.of(
            // Four times the defaults, and no wait of half a second for a batch to be full.
            "max.batch.size", "8192",
            "max.queue.size", "32768",
            "poll.interval.ms", "50"
        ));
        for (int at = 3; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    @Override
    public void handleBatch(
        List<ChangeEvent<String, String>> events,
        DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer
    ) throws InterruptedException {
        for (ChangeEvent<String, String> event : events) {
            seen.merge(kind(event.value()), 1L, Long::sum);
            write(records ? record(event) : event.value());
            committer.markProcessed(event);
        }
        flush();
        committer.markBatchFinished();
        left -= events.size();
        if (left <= 0) {
            ended.countDown();
        }
    }

    private void write(String event) {
        if (file != null) {
            try {
                file.write(event);
                file.newLine();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static String record(ChangeEvent<String, String> event) {
        String value = event.value() == null ? "" : event.value();
        return event.destination() + '\t' + event.key() + '\t' + value;
    }

    private void flush() {
        if (file != null) {
            try {
                file.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    /** "op" stands behind the row, and within a value its quotes would be escaped. */
    private static String kind(String event) {
        if (event == null) {
            return "tombstone";
        }
        char op = event.charAt(event.lastIndexOf(OP) + OP.length());
        return KINDS.getOrDefault(op, "op " + op);
    }

    private void completed(boolean success, String message, Throwable error) {
        if (!success) {
            failure = error == null ? message : message + ": " + error;
        }
        ended.countDown();
    }

    private String found() {
        StringBuilder text = new StringBuilder("{");
        seen.forEach((kind, rows) -> text.append('"').append(kind).append("\": ").append(rows).append(", "));
        return text + "\"ids\": null}";
    }
}
