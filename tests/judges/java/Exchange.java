import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * Writes and reads records with Kafka's own clients: write|read BOOTSTRAP FILE.
 *
 * write: a line of FILE is "TOPIC CODEC IDEMPOTENT PARTITION TIMESTAMP KEY VALUE HEADERS", where bytes are in base64
 * or "-" for null, and headers "name=value,...". Prints "TOPIC PARTITION OFFSET" for each, in order.
 *
 * read: a line is "TOPIC PARTITIONS COUNT"; prints so many records of it, from the beginning, each as
 * "TOPIC PARTITION OFFSET TIMESTAMP TIMESTAMP_TYPE KEY VALUE HEADERS".
 */
public class Exchange {
    public static void main(String[] args) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(args[2]));
        if (args[0].equals("write")) {
            write(args[1], lines);
        } else {
            read(args[1], lines);
        }
    }

    private static void write(String bootstrap, List<String> lines) throws Exception {
        String kind = "";
        KafkaProducer<byte[], byte[]> producer = null;
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String line : lines) {
            String[] words = line.split(" ");
            if (!kind.equals(words[1] + words[2])) {
                if (producer != null) {
                    producer.close();
                }
                kind = words[1] + words[2];
                Properties settings = new Properties();
                settings.put("bootstrap.servers", bootstrap);
                settings.put("compression.type", words[1]);
                settings.put("enable.idempotence", words[2]);
                settings.put("linger.ms", "20");
                settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
                settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
                producer = new KafkaProducer<>(settings);
            }
            List<Header> headers = new ArrayList<>();
            if (words.length > 7) {
                for (String header : words[7].split(",")) {
                    String[] parts = header.split("=", 2);
                    headers.add(new RecordHeader(parts[0], bytes(parts[1])));
                }
            }
            sent.add(producer.send(new ProducerRecord<>(words[0], Integer.parseInt(words[3]),
                Long.parseLong(words[4]), bytes(words[5]), bytes(words[6]), headers)));
        }
        producer.close();
        for (Future<RecordMetadata> future : sent) {
            RecordMetadata found = future.get();
            System.out.println(found.topic() + " " + found.partition() + " " + found.offset());
        }
    }

    private static void read(String bootstrap, List<String> lines) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        List<TopicPartition> partitions = new ArrayList<>();
        int wanted = 0;
        for (String line : lines) {
            String[] words = line.split(" ");
            for (int partition = 0; partition < Integer.parseInt(words[1]); partition++) {
                partitions.add(new TopicPartition(words[0], partition));
            }
            wanted += Integer.parseInt(words[2]);
        }
        StringBuilder out = new StringBuilder();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + 60_000;
            while (wanted > 0 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    wanted--;
                    List<String> headers = new ArrayList<>();
                    for (Header header : record.headers()) {
                        headers.add(header.key() + "=" + text(header.value()));
                    }
                    out.append(String.join(" ", record.topic(), "" + record.partition(), "" + record.offset(),
                        "" + record.timestamp(), record.timestampType().name(), text(record.key()),
                        text(record.value()), String.join(",", headers))).append('\n');
                }
            }
        }
        PrintStream utf8 = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        utf8.print(out);
        utf8.flush();
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text.equals("=") ? "" : text);
    }

    /** The empty array is "=", which base64 never begins with. */
    private static String text(byte[] bytes) {
        if (bytes == null) {
            return "-";
        }
        return bytes.length == 0 ? "=" : Base64.getEncoder().encodeToString(bytes);
    }
}
