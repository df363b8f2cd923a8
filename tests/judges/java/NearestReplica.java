import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Consumes as many records as it is told to in a rack, and prints how many bytes came from which broker. */
public class NearestReplica {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("client.rack", args[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        int wanted = Integer.parseInt(args[3]);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            TopicPartition partition = new TopicPartition(args[1], 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.currentTimeMillis() + 60_000;
            int count = 0;
            while (count < wanted && System.currentTimeMillis() < deadline) {
                count += consumer.poll(Duration.ofMillis(200)).count();
            }
            System.out.println("records " + count);
            consumer.metrics().forEach((name, metric) -> {
                if (name.group().equals("consumer-node-metrics") && name.name().equals("incoming-byte-total")) {
                    String node = name.tags().get("node-id");
                    System.out.println(node + " " + ((Double) metric.metricValue()).longValue());
                }
            });
        }
    }
}
