import io.confluent.kafka.schemaregistry.client.rest.RestService;
import io.confluent.kafka.schemaregistry.client.rest.entities.Schema;
import io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import io.confluent.kafka.schemaregistry.client.rest.entities.SubjectVersion;
import io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import io.confluent.kafka.serializers.KafkaAvroDeserializer;
import io.confluent.kafka.serializers.KafkaAvroSerializer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Confluent's client of the schema registry and its serializer of Avro.
 *
 * "schemas URL FORMAT SUBJECT FIRST COMPATIBLE INCOMPATIBLE OTHER REFERENCE" calls the registry with texts of schemas
 * of a format (OTHER refers to FIRST by the name REFERENCE), and prints the id of FIRST. "produce TOPIC SCHEMA
 * CARRIER SETTING..." writes a record, "consume TOPIC SETTING..." prints the field `carrier` of
 * the records there; settings
 * are NAME=VALUE. What the registry refuses is printed as "refused ERROR_CODE".
 */
public class RegistryClients {
    public static void main(String[] args) throws Exception {
        try {
            switch (args[0]) {
                case "schemas" -> new Schemas(args).run();
                case "produce" -> produce(args[1], args[2], args[3], settings(args, 4));
                case "consume" -> consume(args[1], settings(args, 2));
                default -> throw new IllegalArgumentException(args[0]);
            }
        } catch (SerializationException error) {
            if (!(error.getCause() instanceof RestClientException refused)) {
                throw error;
            }
            System.out.println("refused " + refused.getErrorCode());
        }
    }

    private static Map<String, Object> settings(String[] args, int from) {
        Map<String, Object> settings = new HashMap<>();
        for (int i = from; i < args.length; i++) {
            int equals = args[i].indexOf('=');
            settings.put(args[i].substring(0, equals), args[i].substring(equals + 1));
        }
        return settings;
    }

    private static void produce(String topic, String schema, String carrier, Map<String, Object> settings)
            throws Exception {
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", KafkaAvroSerializer.class.getName());
        GenericRecord flight = new GenericData.Record(new org.apache.avro.Schema.Parser().parse(schema));
        flight.put("carrier", carrier);
        try (KafkaProducer<String, Object> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(topic, flight)).get();
        }
        System.out.println("produced");
    }

    private static void consume(String topic, Map<String, Object> settings) {
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", KafkaAvroDeserializer.class.getName());
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, GenericRecord> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(consumer.partitionsFor(topic).stream()
                .map(each -> new TopicPartition(topic, each.partition())).toList());
            for (ConsumerRecord<String, GenericRecord> each : consumer.poll(Duration.ofSeconds(60))) {
                System.out.println(each.value().get("carrier"));
            }
        }
    }

    private static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    private interface Call {
        Object run() throws Exception;
    }

    private static final class Schemas {
        private final RestService registry;
        private final String format, subject, first, compatible, incompatible, other, reference;

        Schemas(String[] args) {
            registry = new RestService(args[1]);
            format = args[2];
            subject = args[3];
            first = args[4];
            compatible = args[5];
            incompatible = args[6];
            other = args[7];
            reference = args[8];
        }

        void run() throws Exception {
            refused(40401, () -> registry.getLatestVersion(subject));
            int id = register(first);
            check(register(first) == id, "the same schema has the same id");
            lookUp(id);
            compare(id);
            refer(id);
            settings();
            delete(id);
            System.out.println(id);
        }

        private int register(String text) throws Exception {
            return registry.registerSchema(text, format, List.of(), subject);
        }

        private void lookUp(int id) throws Exception {
            Schema found = registry.lookUpSubjectVersion(first, format, List.of(), subject, false);
            check(found.getId() == id && found.getVersion() == 1 && found.getSchemaType().equals(format), found);
            String text = registry.getId(id).getSchemaString();
            check(text.equals(found.getSchema()), text);
            if (!format.equals("PROTOBUF")) {  // which the client takes for JSON
                check(text.equals(registry.getVersionSchemaOnly(subject, 1)), text);
            }
            check(registry.getId(id).getSchemaType().equals(format), format);
            check(registry.getSchemaTypes().contains(format), registry.getSchemaTypes());
            check(registry.getAllSubjects().contains(subject), registry.getAllSubjects());
            check(registry.getAllSubjectsById(id).equals(List.of(subject)), registry.getAllSubjectsById(id));
            check(registry.getAllVersionsById(id).equals(List.of(new SubjectVersion(subject, 1))), id);
            List<Schema> listed = registry.getSchemas(subject, false, false);
            check(listed.equals(List.of(found)), listed);
            refused(40402, () -> registry.getVersion(subject, 9));
            refused(40403, () -> registry.getId(999_999));
            refused(40403, () -> registry.lookUpSubjectVersion(compatible, format, List.of(), subject, false));
            refused(42201, () -> register("{"));
        }

        private void compare(int id) throws Exception {
            check(problems(compatible).isEmpty(), problems(compatible));
            check(!problems(incompatible).isEmpty(), "incompatible");
            refused(409, () -> register(incompatible));
            int next = register(compatible);
            check(next != id, next);
            check(registry.getAllVersions(subject).equals(List.of(1, 2)), registry.getAllVersions(subject));
            check(registry.getLatestVersion(subject).getId() == next, next);
        }

        private List<String> problems(String text) throws Exception {
            return registry.testCompatibility(text, format, List.of(), subject, "latest", true);
        }

        private void refer(int id) throws Exception {
            List<SchemaReference> references = List.of(new SchemaReference(reference, subject, 1));
            if (!format.equals("JSON")) {
                refused(42201, () -> registry.registerSchema(other, format, List.of(), subject + "-other"));
            }
            int number = registry.registerSchema(other, format, references, subject + "-other");
            check(registry.getId(number).getReferences().equals(references), number);
            check(registry.getReferencedBy(subject, 1).equals(List.of(number)), number);
            refused(42206, () -> registry.deleteSchemaVersion(Map.of(), subject, "1"));
            registry.deleteSubject(Map.of(), subject + "-other");
            registry.deleteSubject(Map.of(), subject + "-other", true);
        }

        private void settings() throws Exception {
            registry.updateCompatibility("NONE", subject);
            check(registry.getConfig(subject).getCompatibilityLevel().equals("NONE"), subject);
            check(problems(incompatible).isEmpty(), problems(incompatible));
            registry.deleteConfig(subject);
            refused(40408, () -> registry.getConfig(subject));
            refused(42203, () -> registry.updateCompatibility("ANY", subject));
            registry.setMode("READONLY", subject);
            check(registry.getMode(subject).getMode().equals("READONLY"), subject);
            refused(42205, () -> register(incompatible));
            registry.deleteSubjectMode(subject);
            check(registry.getMode(subject, true).getMode().equals("READWRITE"), subject);
        }

        private void delete(int id) throws Exception {
            check(registry.deleteSchemaVersion(Map.of(), subject, "2") == 2, "2");
            check(registry.getAllVersions(subject).equals(List.of(1)), registry.getAllVersions(subject));
            refused(40407, () -> registry.deleteSchemaVersion(Map.of(), subject, "1", true));
            check(registry.deleteSubject(Map.of(), subject).equals(List.of(1)), subject);
            refused(40401, () -> registry.getAllVersions(subject));
            check(register(first) == id, "a deleted schema that is registered again keeps its id");
        }

        private static void refused(int code, Call call) throws Exception {
            Object found;
            try {
                found = call.run();
            } catch (RestClientException error) {
                check(error.getErrorCode() == code, error);
                return;
            }
            throw new AssertionError("not refused with " + code + ": " + found);
        }
    }
}
