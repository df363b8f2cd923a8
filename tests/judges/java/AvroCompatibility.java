import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * What Java's Avro says of schemas, one line in, one line out.
 *
 * "READER\tWRITER" gives "ok", or each incompatibility as TYPE@LOCATION, sorted, apart by spaces; one schema
 * alone gives its text. What is not a schema gives "refused".
 */
public class AvroCompatibility {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\t")));
        }
    }

    private static String answer(String[] texts) {
        try {
            Schema first = parse(texts[0]);
            return texts.length == 1 ? first.toString() : compare(first, parse(texts[1]));
        } catch (RuntimeException error) {
            return "refused";
        }
    }

    private static Schema parse(String text) {
        return new Schema.Parser(NameValidator.UTF_VALIDATOR).setValidateDefaults(false).parse(text);
    }

    private static String compare(Schema reader, Schema writer) {
        TreeSet<String> found = new TreeSet<>();
        SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult().getIncompatibilities()
            .forEach(each -> found.add(each.getType() + "@" + each.getLocation()));
        return found.isEmpty() ? "ok" : String.join(" ", found);
    }
}
