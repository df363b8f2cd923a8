import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;

/**
 * Writes a record, reads it in a group, and asks for the brokers; prints "GROUP NAME TAG,TAG" of all that the
 * three clients have measured.
 */
public class MetricNames {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", "metric-names");
        settings.put("auto.offset.reset", "earliest");
        for (String what : List.of("key", "value")) {
            settings.put(what + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put(what + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        TreeSet<String> found = new TreeSet<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(args[1], "record")).get();
            add(found, producer.metrics());
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(args[1]));
            while (consumer.poll(Duration.ofMillis(100)).isEmpty()) {
                continue;
            }
            consumer.commitSync();
            add(found, consumer.metrics());
        }
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get();
            add(found, admin.metrics());
        }
        found.forEach(System.out::println);
    }

    private static void add(TreeSet<String> found, Map<MetricName, ? extends Metric> metrics) {
        for (MetricName name : metrics.keySet()) {
            TreeSet<String> tags = new TreeSet<>(name.tags().keySet());
            tags.remove("client-id");
            found.add(name.group() + " " + name.name() + " " + String.join(",", tags));
        }
    }
}
