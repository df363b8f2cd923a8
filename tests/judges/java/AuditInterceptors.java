import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.BitSet;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Java clients in Ottla's audit: a ProducerInterceptor and a ConsumerInterceptor that write the headers and the audit
 * events of docs/guides/pipeline/audit.md, and nothing else of Ottla. Settings, beside the client's own: ottla.audit.topic
 * (ottla.audit), ottla.audit.window.ms (60000), ottla.audit.interval.ms (10000), and ottla.audit.application (the
 * consumer's group.id).
 *
 * The program: produce BOOTSTRAP TOPIC AUDIT_TOPIC WINDOW_MS COUNT, or
 * consume BOOTSTRAP TOPIC AUDIT_TOPIC WINDOW_MS GROUP COUNT, which prints "PARTITION OFFSET" of each record.
 */
public class AuditInterceptors {
    private static final String PRODUCER_HEADER = "ottla-producer";
    private static final String PRODUCED_HEADER = "ottla-produced";
    private static final long CLOSE_MS = 30_000;

    /** A client of its own for the audit events: each in every in-sync replica, once. */
    private static final class Publisher {
        final String name;
        final String server;
        final long windowMs;
        private final String topic;
        private final KafkaProducer<byte[], byte[]> producer;
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread thread = new Thread(work, "ottla-audit");
            thread.setDaemon(true);
            return thread;
        });

        Publisher(Map<String, ?> settings) {
            server = setting(settings, "ottla.audit.server", "java");
            name = server + "/" + UUID.randomUUID();
            topic = setting(settings, "ottla.audit.topic", "ottla.audit");
            windowMs = Long.parseLong(setting(settings, "ottla.audit.window.ms", "60000"));
            Properties own = new Properties();
            settings.forEach((key, value) -> {
                if (value != null && key.matches("bootstrap\\.servers|security\\.protocol|(ssl|sasl)\\..*")) {
                    own.put(key, value);
                }
            });
            own.put("client.id", "ottla-audit");
            own.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            own.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            producer = new KafkaProducer<>(own);
        }

        void every(Map<String, ?> settings, Runnable report) {
            long intervalMs = Long.parseLong(setting(settings, "ottla.audit.interval.ms", "10000"));
            timer.scheduleWithFixedDelay(report, intervalMs, intervalMs, TimeUnit.MILLISECONDS);
        }

        void soon(Runnable report) {
            timer.execute(report);
        }

        /** Whether the event was acknowledged. */
        boolean publish(String event) {
            try {
                byte[] key = name.getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(topic, key, event.getBytes(StandardCharsets.UTF_8))).get();
                return true;
            } catch (Exception failed) {
                return false;
            }
        }

        /** Ends the timer's reports; the last one is the caller's. */
        void end() {
            timer.shutdown();
            try {
                timer.awaitTermination(CLOSE_MS, TimeUnit.MILLISECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        void close() {
            producer.close(Duration.ofMillis(CLOSE_MS));
        }

        String head(String kind, long report, boolean last) {
            return "{\"version\":1,\"" + kind + "\":" + quoted(name) + ",\"server\":" + quoted(server) + ",\"report\":"
                + report + ",\"published_at\":" + System.currentTimeMillis() + ",\"window_ms\":" + windowMs
                + ",\"final\":" + last;
        }
    }

    private static String setting(Map<String, ?> settings, String key, String otherwise) {
        Object value = settings.get(key);
        return value == null ? otherwise : value.toString();
    }

    private static String quoted(String text) {
        StringBuilder written = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                written.append('\\').append(letter);
            } else if (letter < ' ') {
                written.append(String.format("\\u%04x", (int) letter));
            } else {
                written.append(letter);
            }
        }
        return written.append('"').toString();
    }

    /**
     * Counts what the brokers acknowledged. An acknowledgement names no record: it is known by the topic and the
     * timestamp, which is set here where the application sets none. So the topic's message.timestamp.type must be
     * CreateTime, and the numbers of a window in which a record failed are not told. It knows nothing of transactions.
     */
    public static final class Produced<K, V> implements ProducerInterceptor<K, V> {
        private static final class Window {
            final String topic;
            final long start;
            long sent;
            long acknowledged;
            long failed;

            Window(String topic, long start) {
                this.topic = topic;
                this.start = start;
            }

            long inFlight() {
                return sent - acknowledged - failed;
            }
        }

        private final Map<String, TreeMap<Long, Window>> windows = new HashMap<>();
        private final Map<String, TreeMap<Long, Deque<Window>>> inFlight = new HashMap<>();
        private final List<Long> lost = new ArrayList<>();
        private Publisher publisher;
        private long reports;
        private long latestMs;

        @Override
        public void configure(Map<String, ?> settings) {
            publisher = new Publisher(settings);
            publisher.every(settings, () -> report(false));
        }

        @Override
        public synchronized ProducerRecord<K, V> onSend(ProducerRecord<K, V> record) {
            latestMs = Math.max(latestMs, System.currentTimeMillis());
            long now = latestMs;
            Window window = windows.computeIfAbsent(record.topic(), topic -> new TreeMap<>())
                .computeIfAbsent(now - now % publisher.windowMs, start -> new Window(record.topic(), start));
            long timestamp = record.timestamp() == null ? now : record.timestamp();
            ProducerRecord<K, V> named = new ProducerRecord<>(
                record.topic(), record.partition(), timestamp, record.key(), record.value(), record.headers());
            named.headers().add(PRODUCER_HEADER, publisher.name.getBytes(StandardCharsets.UTF_8));
            named.headers().add(PRODUCED_HEADER, (now + "/" + window.sent).getBytes(StandardCharsets.UTF_8));
            window.sent++;
            inFlight.computeIfAbsent(record.topic(), topic -> new TreeMap<>())
                .computeIfAbsent(timestamp, at -> new ArrayDeque<>()).add(window);
            return named;
        }

        @Override
        public synchronized void onAcknowledgement(RecordMetadata metadata, Exception failure) {
            TreeMap<Long, Deque<Window>> waiting = inFlight.get(metadata.topic());
            long timestamp = waiting.containsKey(metadata.timestamp()) ? metadata.timestamp() : waiting.firstKey();
            Deque<Window> there = waiting.get(timestamp);
            Window window = there.poll();
            if (there.isEmpty()) {
                waiting.remove(timestamp);
            }
            if (failure == null) {
                window.acknowledged++;
            } else {
                window.failed++;
            }
        }

        private void report(boolean last) {
            StringBuilder told = new StringBuilder();
            List<Window> closed = new ArrayList<>();
            long report;
            synchronized (this) {
                latestMs = Math.max(latestMs, System.currentTimeMillis());
                report = reports++;
                for (TreeMap<Long, Window> ofTopic : windows.values()) {
                    for (Window window : ofTopic.values()) {
                        boolean over = last || latestMs >= window.start + publisher.windowMs;
                        boolean isClosed = over && window.inFlight() == 0;
                        boolean known = window.inFlight() == 0 && window.failed == 0;
                        told.append(told.length() == 0 ? "" : ",").append("{\"topic\":").append(quoted(window.topic))
                            .append(",\"start\":").append(window.start)
                            .append(",\"acknowledged\":").append(window.acknowledged)
                            .append(",\"failed\":").append(window.failed)
                            .append(",\"in_flight\":").append(window.inFlight())
                            .append(",\"closed\":").append(isClosed)
                            .append(",\"numbers\":").append(known ? "[[0," + (window.sent - 1) + "]]" : "null")
                            .append("}");
                        if (isClosed) {
                            closed.add(window);
                        }
                    }
                }
            }
            String event = publisher.head("producer", report, last) + ",\"lost_reports\":" + lost
                + ",\"windows\":[" + told + "]}";
            if (publisher.publish(event)) {
                synchronized (this) {
                    closed.forEach(window -> windows.get(window.topic).remove(window.start));
                }
            } else {
                lost.add(report);
            }
        }

        @Override
        public void close() {
            publisher.end();
            report(true);
            publisher.close();
        }
    }

    /**
     * Counts what the application processed: what it was given and has committed. An interceptor hears of a commit when
     * it is done, so a process that dies between a commit and its report leaves those records uncounted.
     */
    public static final class Processed<K, V> implements ConsumerInterceptor<K, V> {
        private static final class Given {
            final long offset;
            final String window;
            final int number;

            Given(long offset, String window, int number) {
                this.offset = offset;
                this.window = window;
                this.number = number;
            }
        }

        private static final class Counts {
            final BitSet numbers = new BitSet();
            long received;
        }

        private final Map<TopicPartition, Deque<Given>> pending = new HashMap<>();
        private Map<String, Counts> processed = new HashMap<>();
        private Map<String, Long> unaudited = new HashMap<>();
        private Publisher publisher;
        private String application;
        private long reports;
        private String onTheWay;

        @Override
        public void configure(Map<String, ?> settings) {
            publisher = new Publisher(settings);
            application = setting(settings, "ottla.audit.application", setting(settings, "group.id", ""));
            publisher.every(settings, () -> report(false));
        }

        @Override
        public synchronized ConsumerRecords<K, V> onConsume(ConsumerRecords<K, V> records) {
            for (ConsumerRecord<K, V> record : records) {
                pending.computeIfAbsent(new TopicPartition(record.topic(), record.partition()), tp -> new ArrayDeque<>())
                    .add(given(record));
            }
            return records;
        }

        private Given given(ConsumerRecord<K, V> record) {
            String producer = first(record, PRODUCER_HEADER);
            String produced = first(record, PRODUCED_HEADER);
            if (producer == null || producer.isEmpty() || produced == null || !produced.matches("[0-9]{1,15}/[0-9]{1,9}")) {
                return new Given(record.offset(), null, 0);
            }
            long at = Long.parseLong(produced.substring(0, produced.indexOf('/')));
            String window = "{\"topic\":" + quoted(record.topic()) + ",\"producer\":" + quoted(producer) + ",\"start\":"
                + (at - at % publisher.windowMs);
            return new Given(record.offset(), window, Integer.parseInt(produced.substring(produced.indexOf('/') + 1)));
        }

        private String first(ConsumerRecord<K, V> record, String name) {
            for (Header header : record.headers().headers(name)) {
                return header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
            }
            return null;
        }

        @Override
        public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            synchronized (this) {
                offsets.forEach((partition, committed) -> {
                    Deque<Given> given = pending.getOrDefault(partition, new ArrayDeque<>());
                    while (!given.isEmpty() && given.peek().offset < committed.offset()) {
                        Given done = given.poll();
                        if (done.window == null) {
                            unaudited.merge(partition.topic(), 1L, Long::sum);
                        } else {
                            Counts counts = processed.computeIfAbsent(done.window, window -> new Counts());
                            counts.numbers.set(done.number);
                            counts.received++;
                        }
                    }
                });
            }
            try {
                publisher.soon(() -> report(false));
            } catch (java.util.concurrent.RejectedExecutionException closing) {
                return; // close() reports it
            }
        }

        /** Publishes the event that has not arrived, or the next one. Whether it arrived. */
        private boolean report(boolean last) {
            synchronized (this) {
                if (onTheWay == null) {
                    StringBuilder told = new StringBuilder();
                    processed.forEach((window, counts) -> {
                        int first = counts.numbers.nextSetBit(0) / 8 * 8;
                        byte[] bitmap = counts.numbers.get(first, counts.numbers.length()).toByteArray();
                        told.append(told.length() == 0 ? "" : ",").append(window)
                            .append(",\"received\":").append(counts.received).append(",\"rejected\":0,\"first\":")
                            .append(first).append(",\"numbers\":\"").append(Base64.getEncoder().encodeToString(bitmap))
                            .append("\"}");
                    });
                    StringBuilder others = new StringBuilder();
                    unaudited.forEach((topic, count) -> others.append(others.length() == 0 ? "" : ",")
                        .append(quoted(topic)).append(":").append(count));
                    onTheWay = publisher.head("consumer", reports++, last) + ",\"application\":" + quoted(application)
                        + ",\"unaudited\":{" + others + "},\"windows\":[" + told + "]}";
                    processed = new HashMap<>();
                    unaudited = new HashMap<>();
                }
            }
            boolean arrived = publisher.publish(onTheWay);
            if (arrived) {
                onTheWay = null;
            }
            return arrived;
        }

        @Override
        public void close() {
            publisher.end();
            boolean before = onTheWay == null || report(false);
            if (before) {
                report(true);
            }
            publisher.close();
        }
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        settings.put("ottla.audit.topic", args[3]);
        settings.put("ottla.audit.window.ms", args[4]);
        settings.put("ottla.audit.interval.ms", "500");
        if (args[0].equals("produce")) {
            settings.put("interceptor.classes", Produced.class.getName());
            settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                int count = Integer.parseInt(args[5]);
                for (int number = 0; number < count; number++) {
                    producer.send(new ProducerRecord<>(args[2], "k" + number, "v" + number));
                }
            }
            return;
        }
        settings.put("interceptor.classes", Processed.class.getName());
        settings.put("group.id", args[5]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(args[2]));
            for (int left = Integer.parseInt(args[6]); left > 0;) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println(record.partition() + " " + record.offset());
                }
                left -= records.count();
                consumer.commitSync();
            }
        }
    }
}
