import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import kafka.server.DynamicBrokerConfig$;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/**
 * Prints which broker settings Kafka changes while a broker runs, and its verdicts.
 *
 * <p>`mode NAME per-broker|cluster-wide` for each dynamic setting; then `verdict LEVEL NAME VALUE MESSAGE` for
 * each setting that Kafka has, alone and for a listener, and for each input line `LEVEL NAME VALUE`. LEVEL is
 * broker or cluster; the message is empty where the setting may be stored.
 */
public class DynamicConfigs {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> modes = new TreeMap<>(DynamicBrokerConfig$.MODULE$.dynamicConfigUpdateModes());
        modes.forEach((name, mode) -> System.out.printf("mode\t%s\t%s%n", name, mode));
        for (ConfigDef.ConfigKey key : KafkaConfig.configDef().configKeys().values()) {
            for (String prefix : new String[] {"", "listener.name.other."}) {
                judge("broker", prefix + key.name, someValue(key));
                judge("cluster", prefix + key.name, someValue(key));
            }
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", 3);
            judge(words[0], words[1], words[2]);
        }
    }

    private static String someValue(ConfigDef.ConfigKey key) {
        Object value = key.hasDefault() ? key.defaultValue : null;
        return value == null ? "1" : ConfigDef.convertToString(value, key.type);
    }

    private static void judge(String level, String name, String value) {
        Properties settings = new Properties();
        settings.put(name, value);
        String verdict = "";
        try {
            DynamicBrokerConfig$.MODULE$.validateConfigs(settings, level.equals("broker"));
        } catch (ConfigException refused) {
            verdict = refused.getMessage();
        }
        System.out.printf("verdict\t%s\t%s\t%s\t%s%n", level, name, value, verdict);
    }
}
