import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs many commands of Kafka's tools in one virtual machine: COMMANDS_FILE.
 *
 * A line for each: the class, its arguments, its standard input, and a regular expression that is to be found
 * in what it prints (it is run again until it is, for at most a minute), with tabs between them, each in base64.
 * What each printed last, and its exit status, go to standard output as "STATUS OUT ERR", base64 again.
 */
public class Tools {
    /** Thrown instead of ending the virtual machine. Tools catch it too, and end once more. */
    static class Ended extends RuntimeException {
        Ended() {
            super("ended", null, false, false);
        }
    }

    private static Integer status;

    /** Goes to whatever is captured now: Scala keeps the first System.out that it sees. */
    static class Switch extends OutputStream {
        volatile ByteArrayOutputStream into = new ByteArrayOutputStream();

        @Override
        public void write(int b) {
            into.write(b);
        }

        @Override
        public void write(byte[] b, int from, int count) {
            into.write(b, from, count);
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream real = System.out;
        Switch out = new Switch();
        Switch err = new Switch();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((asked, message) -> end(asked));
        Exit.setHaltProcedure((asked, message) -> end(asked));
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            List<String> words = new ArrayList<>();
            for (String word : line.split("\t", -1)) {
                words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
            }
            Pattern awaited = Pattern.compile(words.remove(words.size() - 1), Pattern.DOTALL);
            byte[] input = words.remove(words.size() - 1).getBytes(StandardCharsets.UTF_8);
            String name = words.remove(0);
            long end = System.nanoTime() + 60_000_000_000L;
            do {
                System.setIn(new ByteArrayInputStream(input));
                out.into = new ByteArrayOutputStream();
                err.into = new ByteArrayOutputStream();
                status = null;
                run(name, words.toArray(new String[0]));
            } while (!awaited.matcher(out.into.toString(StandardCharsets.UTF_8)).find()
                && System.nanoTime() < end);
            real.println(status + " " + encoded(out) + "- " + encoded(err) + "-");
            real.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String encoded(Switch captured) {
        return Base64.getEncoder().encodeToString(captured.into.toByteArray());
    }

    private static void end(int asked) {
        if (status == null) {
            status = asked;
        }
        throw new Ended();
    }

    private static void run(String name, String[] arguments) throws Exception {
        int otherwise = 0;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException e) {
            otherwise = 1;
            if (status == null) {
                e.getCause().printStackTrace();
            }
        }
        if (status == null) {
            status = otherwise;
        }
    }
}
