import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DeleteTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;

/**
 * Changes topics when others with the same client id have used up its controller_mutation_rate: BOOTSTRAP.
 *
 * Each change is tried by a client that does not try again, as "refused-CHANGE", and by one that does, as
 * "waiting-CHANGE". A line for each says what came of it, and after how many milliseconds.
 */
public class Mutations {
    private static final short ONE = 1;
    private static final int OVERDRAWS = 13;

    public static void main(String[] args) throws Exception {
        for (String kind : List.of("refused", "waiting")) {
            for (String change : List.of("create", "grow", "delete")) {
                String name = kind + "-" + change;
                long began = System.nanoTime();
                try (Admin spender = admin(args[0], name)) {
                    spender.createTopics(List.of(new NewTopic(name, OVERDRAWS, ONE))).all().get();
                }
                try (Admin admin = admin(args[0], name)) {
                    String told = told(changed(admin, change, name, kind.equals("waiting")));
                    System.out.println(name + ": " + told + " " + (System.nanoTime() - began) / 1_000_000);
                }
            }
        }
    }

    private static Admin admin(String bootstrap, String name) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", name);
        settings.put("default.api.timeout.ms", "120000");
        return Admin.create(settings);
    }

    private static KafkaFuture<?> changed(Admin admin, String change, String topic, boolean retries) {
        switch (change) {
            case "create":
                return admin.createTopics(List.of(new NewTopic(topic + "-more", 1, ONE)),
                    new CreateTopicsOptions().retryOnQuotaViolation(retries)).all();
            case "grow":
                return admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(OVERDRAWS + 1)),
                    new CreatePartitionsOptions().retryOnQuotaViolation(retries)).all();
            default:
                return admin.deleteTopics(List.of(topic),
                    new DeleteTopicsOptions().retryOnQuotaViolation(retries)).all();
        }
    }

    private static String told(KafkaFuture<?> done) throws InterruptedException {
        try {
            done.get();
            return "done";
        } catch (ExecutionException e) {
            String waits = "";
            if (e.getCause() instanceof ThrottlingQuotaExceededException) {
                waits = ((ThrottlingQuotaExceededException) e.getCause()).throttleTimeMs() > 0 ? ", waits" : "";
            }
            return e.getCause().getClass().getSimpleName() + waits;
        }
    }
}
