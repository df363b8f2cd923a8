import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/** Reads "class version hex" lines, decodes each with Kafka's own message class, and prints it encoded again. */
public class RoundTrip {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            System.out.println(answer(parts[0], Short.parseShort(parts[1]), HexFormat.of().parseHex(parts[2])));
        }
    }

    private static String answer(String name, short version, byte[] bytes) throws Exception {
        Message message = (Message) Class.forName("org.apache.kafka.common.message." + name)
            .getDeclaredConstructor().newInstance();
        ByteBuffer input = ByteBuffer.wrap(bytes);
        try {
            message.read(new ByteBufferAccessor(input), version);
        } catch (RuntimeException problem) {
            return "refused: " + problem;
        }
        if (input.hasRemaining()) {
            return "refused: " + input.remaining() + " bytes left over";
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer output = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(output), cache, version);
        return HexFormat.of().formatHex(output.array());
    }
}
