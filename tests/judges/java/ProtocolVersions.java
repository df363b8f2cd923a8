import org.apache.kafka.server.common.MetadataVersion;

/** What each inter.broker.protocol.version from 2.8 on means to Kafka, a line each. */
public class ProtocolVersions {
    public static void main(String[] args) {
        for (MetadataVersion version : MetadataVersion.VERSIONS) {
            if (version.isAtLeast(MetadataVersion.IBP_2_8_IV0) && version.isLessThan(MetadataVersion.IBP_4_0_IV0)) {
                System.out.println(version + " " + version.fetchRequestVersion() + " "
                    + version.listOffsetRequestVersion() + " " + version.isLeaderRecoverySupported());
            }
        }
        for (String text : args) {
            System.out.println(text + " " + MetadataVersion.fromVersionString(text));
        }
    }
}
