import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;

/** Prints Kafka's error codes, the APIs of a broker in ZooKeeper mode, and their header versions, one a line. */
public class PrintEnums {
    public static void main(String[] arguments) {
        for (Errors each : Errors.values()) {
            boolean retriable = each.exception() instanceof RetriableException;
            System.out.printf("error\t%d\t%s\t%b%n", each.code(), each.name(), retriable);
        }
        for (ApiKeys each : ApiKeys.zkBrokerApis()) {
            System.out.printf("api\t%d\t%s\t%d\t%d\t%b%n", each.id, each.name(), each.oldestVersion(),
                each.latestVersion(false), each.clusterAction);
            for (short version : each.allVersions()) {
                System.out.printf("header\t%d\t%d\t%d\t%d%n", each.id, version, each.requestHeaderVersion(version),
                    each.responseHeaderVersion(version));
            }
        }
    }
}
