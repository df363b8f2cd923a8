import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/**
 * Kafka's own reader and writer of records.
 * `write DIRECTORY` leaves a file `v<magic>-<codec>.bin` for every format and codec;
 * `read FILE...` checks the batches of each file and prints their records, one a line.
 */
public class RecordBatches {
    public static void main(String[] arguments) throws IOException {
        if (arguments[0].equals("write")) {
            write(Path.of(arguments[1]));
        } else {
            for (int at = 1; at < arguments.length; at++) {
                read(Path.of(arguments[at]));
            }
        }
    }

    private static void write(Path directory) throws IOException {
        for (byte magic = 0; magic <= 2; magic++) {
            for (CompressionType codec : CompressionType.values()) {
                if (magic < 2 && codec == CompressionType.ZSTD) {
                    continue;
                }
                MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), magic,
                    Compression.of(codec).build(), TimestampType.CREATE_TIME, 0);
                for (int number = 0; number < 300; number++) {
                    byte[] value = ("value " + "v".repeat(number) + " " + number).getBytes(StandardCharsets.UTF_8);
                    Header[] headers = magic < 2 ? new Header[0] : new Header[] {
                        new RecordHeader("number", new byte[] {(byte) number}), new RecordHeader("null", (byte[]) null)};
                    long timestamp = magic == 0 ? RecordBatch.NO_TIMESTAMP : 1000 + number;
                    byte[] key = number % 3 == 0 ? null : ("key " + number).getBytes(StandardCharsets.UTF_8);
                    builder.append(timestamp, key, number % 7 == 0 ? null : value, headers);
                }
                ByteBuffer built = builder.build().buffer();
                byte[] bytes = new byte[built.remaining()];
                built.get(bytes);
                Files.write(directory.resolve("v" + magic + "-" + codec.name + ".bin"), bytes);
            }
        }
    }

    private static void read(Path file) throws IOException {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file)));
        for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            System.out.printf("batch %s %d %d %d %d %d %d %d %b %b %d%n", batch.compressionType().name,
                batch.baseOffset(), batch.lastOffset(), batch.maxTimestamp(), batch.producerId(),
                batch.producerEpoch(), batch.baseSequence(), batch.lastSequence(), batch.isTransactional(),
                batch.isControlBatch(), batch.partitionLeaderEpoch());
            for (Record record : batch) {
                record.ensureValid();
                StringBuilder headers = new StringBuilder();
                for (Header header : record.headers()) {
                    headers.append(' ').append(header.key()).append('=').append(hex(header.value()));
                }
                System.out.printf("record %d %d %s %s%s%n", record.offset(), record.timestamp(),
                    hex(record.hasKey() ? record.key() : null), hex(record.hasValue() ? record.value() : null), headers);
            }
        }
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "null";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return hex(bytes);
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : "x" + HexFormat.of().formatHex(bytes);
    }
}
