import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions by Kafka's own producer: BOOTSTRAP TOPIC PREFIX COUNT [decided].
 *
 * COUNT pairs of transactions overlap; of each pair one is committed and one aborted, by turns. The last pair
 * is written, and neither committed nor aborted, unless all are to be decided.
 */
public class Transactions {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[3]);
        List<KafkaProducer<String, String>> pair = new ArrayList<>();
        for (String name : List.of("one", "two")) {
            pair.add(new KafkaProducer<>(
                Map.of("bootstrap.servers", args[0], "transactional.id", args[2] + name,
                    "transaction.timeout.ms", "600000", "linger.ms", "5"),
                new StringSerializer(), new StringSerializer()));
            pair.get(pair.size() - 1).initTransactions();
        }
        for (int number = 0; number < count; number++) {
            for (KafkaProducer<String, String> producer : pair) {
                producer.beginTransaction();
                for (int record = 0; record < 3; record++) {
                    String value = args[2] + " " + pair.indexOf(producer) + " " + number + " " + record;
                    producer.send(new ProducerRecord<>(topic, 0, "key" + record, value));
                }
                producer.flush();
            }
            if (number == count - 1 && args.length < 5) {
                Runtime.getRuntime().halt(0);
            }
            pair.get(number % 2).commitTransaction();
            pair.get(1 - number % 2).abortTransaction();
        }
        Runtime.getRuntime().halt(0);
    }
}
