import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Configurable;
import org.apache.kafka.common.TopicPartition;

/**
 * A member of a group, of Kafka's own client: TOPIC NAME=VALUE..., until its standard input ends.
 *
 * Prints "owns PARTITION,..." after each rebalance, "record PARTITION OFFSET VALUE" for each record, what its
 * Weighted assignor is told, and "failed CLASS MESSAGE" for an exception of poll, which ends it.
 */
public class Member {
    /**
     * Gives partitions to members by their weights, and none that another member still owns. The twin of
     * test_client_own_assignor.py's.
     */
    public static class Weighted implements ConsumerPartitionAssignor, Configurable {
        private String weight;

        @Override
        public void configure(Map<String, ?> configs) {
            weight = String.valueOf(configs.get("weight"));
        }

        @Override
        public String name() {
            return "weighted";
        }

        @Override
        public List<RebalanceProtocol> supportedProtocols() {
            return List.of(RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER);
        }

        @Override
        public ByteBuffer subscriptionUserData(Set<String> topics) {
            return bytes(weight + " " + String.join(",", new TreeSet<>(topics)));
        }

        @Override
        public GroupAssignment assign(Cluster cluster, GroupSubscription group) {
            Map<String, Subscription> members = group.groupSubscription();
            Map<String, Integer> weights = new HashMap<>();
            members.forEach((name, member) ->
                weights.put(name, Integer.parseInt(text(member.userData()).split(" ")[0])));
            List<String> turns = new ArrayList<>();
            members.keySet().stream().sorted(Comparator.comparing(weights::get)).forEach(name -> {
                for (int turn = 0; turn < weights.get(name); turn++) {
                    turns.add(name);
                }
            });
            Map<TopicPartition, String> owners = new HashMap<>();
            members.forEach((name, member) -> member.ownedPartitions().forEach(tp -> owners.put(tp, name)));
            Map<String, List<TopicPartition>> shares = new HashMap<>();
            members.keySet().forEach(name -> shares.put(name, new ArrayList<>()));
            Set<String> topics = new TreeSet<>();
            members.values().forEach(member -> topics.addAll(member.topics()));
            for (String topic : topics) {
                for (int number = 0; number < cluster.partitionCountForTopic(topic); number++) {
                    TopicPartition partition = new TopicPartition(topic, number);
                    String name = turns.get(number % turns.size());
                    if (owners.getOrDefault(partition, name).equals(name)) {
                        shares.get(name).add(partition);
                    }
                }
            }
            String seen = members.keySet().stream().sorted(Comparator.comparing(weights::get))
                .map(name -> text(members.get(name).userData()) + "/" + members.get(name).ownedPartitions().size()
                    + "/" + members.get(name).groupInstanceId().orElse("-"))
                .collect(Collectors.joining(" "));
            Map<String, Assignment> assignments = new HashMap<>();
            shares.forEach((name, share) ->
                assignments.put(name, new Assignment(share, bytes("java saw " + seen))));
            return new GroupAssignment(assignments);
        }

        @Override
        public void onAssignment(Assignment assignment, ConsumerGroupMetadata metadata) {
            System.out.println("told " + metadata.generationId() + " " + text(assignment.userData()));
        }

        private static ByteBuffer bytes(String text) {
            return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
        }

        private static String text(ByteBuffer data) {
            return StandardCharsets.UTF_8.decode(data.duplicate()).toString();
        }
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (String setting : Arrays.copyOfRange(args, 1, args.length)) {
            String[] words = setting.split("=", 2);
            settings.put(words[0], words[1]);
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            Thread input = new Thread(() -> awaitEnd(consumer));
            input.setDaemon(true);
            input.start();
            consumer.subscribe(List.of(args[0]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    System.out.println("owns " + consumer.assignment().stream()
                        .map(partition -> String.valueOf(partition.partition())).sorted()
                        .collect(Collectors.joining(",")));
                }
            });
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("record " + record.partition() + " " + record.offset() + " " + record.value());
                }
            }
        } catch (org.apache.kafka.common.errors.WakeupException end) {
            System.out.println("ended");
        } catch (RuntimeException problem) {
            System.out.println("failed " + problem.getClass().getSimpleName() + " " + problem.getMessage());
        }
    }

    private static void awaitEnd(KafkaConsumer<String, String> consumer) {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException gone) {
            // it has ended
        }
        consumer.wakeup();
    }
}
