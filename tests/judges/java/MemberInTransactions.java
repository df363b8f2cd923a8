import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A member of a group that commits its offsets in transactions: BOOTSTRAP GROUP INPUT OUTPUT HEARTBEAT_MS.
 *
 * Does what the lines of its standard input say, one after the other, and prints a line for each: "read" prints
 * "PARTITION OFFSET" of the next record; "begin", "write TEXT", "offsets" (sendOffsetsToTransaction of the record
 * that was read last, with the group metadata as it is then), "commit" and "abort" print "ok", or the class of what
 * they threw.
 */
public class MemberInTransactions {
    public static void main(String[] args) throws Exception {
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", args[0], "group.id", args[1], "heartbeat.interval.ms", args[4],
                "session.timeout.ms", "20000", "enable.auto.commit", "false", "max.poll.records", "1"),
            new StringDeserializer(), new StringDeserializer());
        KafkaProducer<String, String> producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", args[0], "transactional.id", args[1], "linger.ms", "0"),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        consumer.subscribe(List.of(args[2]));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        ConsumerRecord<String, String> last = null;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer = "ok";
            try {
                switch (line.split(" ")[0]) {
                    case "read":
                        last = next(consumer);
                        answer = last.partition() + " " + last.offset();
                        break;
                    case "begin":
                        producer.beginTransaction();
                        break;
                    case "write":
                        producer.send(new ProducerRecord<>(args[3], 0, null, line.substring(6))).get();
                        break;
                    case "offsets":
                        producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition(last.topic(), last.partition()),
                                new OffsetAndMetadata(last.offset() + 1)),
                            consumer.groupMetadata());
                        break;
                    case "commit":
                        producer.commitTransaction();
                        break;
                    case "abort":
                        producer.abortTransaction();
                        break;
                    default:
                        throw new IllegalArgumentException(line);
                }
            } catch (RuntimeException problem) {
                answer = problem.getClass().getSimpleName();
            }
            System.out.println(answer);
        }
        producer.close();
        consumer.close();
    }

    private static ConsumerRecord<String, String> next(KafkaConsumer<String, String> consumer) {
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (!records.isEmpty()) {
                return records.iterator().next();
            }
        }
    }
}
