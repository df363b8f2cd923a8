import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * What Kafka's assignors decide. Each line of the file: assignor, topics, members, by tabs. A topic is
 * name:racks,racks,… with the racks of one partition joined by +; a member is id:instance:subscription, the
 * latter in base64. Prints for each line the members with their partitions, or the exception.
 */
public class Assignors {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Paths.get(arguments[0]))) {
            String[] words = line.split("\t");
            try {
                System.out.println(decide(assignor(words[0]), words[1].split(" "), words[2].split(" ")));
            } catch (RuntimeException problem) {
                System.out.println("failed " + problem);
            }
        }
    }

    static ConsumerPartitionAssignor assignor(String name) {
        for (ConsumerPartitionAssignor each : List.of(new RangeAssignor(), new RoundRobinAssignor(),
            new StickyAssignor(), new CooperativeStickyAssignor()))
            if (each.name().equals(name))
                return each;
        throw new IllegalArgumentException(name);
    }

    static String decide(ConsumerPartitionAssignor assignor, String[] topics, String[] members) {
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Node> nodes = new TreeMap<>();
        for (String topic : topics) {
            String[] nameAndRacks = topic.split(":", -1);
            int number = 0;
            for (String racks : nameAndRacks[1].split(",", -1)) {
                List<Node> replicas = new ArrayList<>();
                for (String rack : racks.split("\\+"))
                    replicas.add(nodes.computeIfAbsent(rack, r -> new Node(nodes.size(), "h", 1, r.isEmpty() ? null : r)));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(nameAndRacks[0], number++, all[0], all, all));
            }
        }
        Cluster cluster = new Cluster("c", nodes.values(), partitions, Collections.emptySet(), Collections.emptySet());
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (String member : members) {
            String[] parts = member.split(":", -1);
            ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode(parts[2]));
            Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes);
            subscription.setGroupInstanceId(parts[1].isEmpty() ? Optional.empty() : Optional.of(parts[1]));
            subscriptions.put(parts[0], subscription);
        }
        Map<String, Assignment> decided =
            assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        // As bytes and back: what a member would be told.
        return new TreeMap<>(decided).entrySet().stream().map(each -> {
            ByteBuffer told = ConsumerProtocol.serializeAssignment(each.getValue());
            return each.getKey() + "=" + ConsumerProtocol.deserializeAssignment(told).partitions().stream()
                .map(p -> p.topic() + "-" + p.partition()).sorted().collect(Collectors.joining(","));
        }).collect(Collectors.joining(" "));
    }
}
