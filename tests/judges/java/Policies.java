import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Policies that say what they are given; `policies_beside_kafka.py` has the same in Python. */
public class Policies {
    private static String sorted(Map<?, ?> map) {
        return map == null ? "null" : new TreeMap<>(map).toString();
    }

    public static class Create implements CreateTopicPolicy {
        private Object refused;

        public void configure(Map<String, ?> configs) {
            refused = configs.get("custom.refused");
        }

        public void validate(RequestMetadata r) {
            if (r.topic().startsWith("broken")) {
                throw new IllegalStateException("a secret");
            }
            if (r.topic().startsWith("" + refused)) {
                throw new PolicyViolationException(r.topic() + " " + r.numPartitions() + " "
                    + r.replicationFactor() + " " + sorted(r.replicasAssignments()) + " " + sorted(r.configs()));
            }
        }

        public void close() {}
    }

    public static class Alter implements AlterConfigPolicy {
        public void configure(Map<String, ?> configs) {}

        public void validate(RequestMetadata r) {
            if (r.configs().containsKey("flush.ms")) {
                throw new IllegalStateException("a secret");
            }
            if (r.configs().containsKey("retention.ms") || r.configs().containsKey("log.retention.ms")) {
                throw new PolicyViolationException(
                    r.resource().type() + " '" + r.resource().name() + "' " + sorted(r.configs()));
            }
        }

        public void close() {}
    }
}
