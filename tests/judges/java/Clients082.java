import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import kafka.api.FetchRequestBuilder;
import kafka.api.PartitionOffsetRequestInfo;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.OffsetRequest;
import kafka.javaapi.OffsetResponse;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.javaapi.producer.Producer;
import kafka.message.MessageAndMetadata;
import kafka.message.MessageAndOffset;
import kafka.producer.ByteArrayPartitioner;
import kafka.producer.DefaultPartitioner;
import kafka.producer.KeyedMessage;
import kafka.producer.ProducerConfig;

/** Clients of Kafka 0.8.2 that do what the lines of their input say; each line is answered by one line. */
public class Clients082 {
    /** A high-level consumer, which takes as many records as it has been allowed. */
    static class Reader {
        final ConsumerConnector connector;
        final Semaphore allowed = new Semaphore(0);
        final AtomicInteger count = new AtomicInteger();
        final ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();

        Reader(String name, String zookeeper, String group, String what, int streams, String[] words, int from) {
            Properties settings = new Properties();
            settings.put("zookeeper.connect", zookeeper);
            settings.put("group.id", group);
            settings.put("consumer.id", name);
            settings.put("auto.offset.reset", "smallest");
            settings.put("rebalance.max.retries", "40");
            settings.put("rebalance.backoff.ms", "500");
            settings.put("zookeeper.session.timeout.ms", "30000");
            settings.put("zookeeper.connection.timeout.ms", "60000");
            settings.put("refresh.leader.backoff.ms", "200");
            for (int i = from; i < words.length; i++) {
                String[] pair = words[i].split("=", 2);
                settings.put(pair[0], pair[1]);
            }
            connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
            String target = what.substring(what.indexOf(':') + 1);
            List<KafkaStream<byte[], byte[]>> opened;
            if (what.startsWith("filter:")) {
                opened = connector.createMessageStreamsByFilter(new Whitelist(target), streams);
            } else {
                Map<String, Integer> wanted = new HashMap<>();
                wanted.put(target, streams);
                opened = connector.createMessageStreams(wanted).get(target);
            }
            for (KafkaStream<byte[], byte[]> stream : opened) {
                Thread thread = new Thread(() -> take(stream));
                thread.setDaemon(true);
                thread.start();
            }
        }

        void take(KafkaStream<byte[], byte[]> stream) {
            var iterator = stream.iterator();
            while (true) {
                allowed.acquireUninterruptibly();
                if (!iterator.hasNext()) {
                    return;
                }
                MessageAndMetadata<byte[], byte[]> record = iterator.next();
                seen.add(record.topic() + "/" + record.partition() + "/" + record.offset() + "="
                    + new String(record.message()));
                count.incrementAndGet();
            }
        }
    }

    final Map<String, Reader> readers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Clients082 clients = new Clients082();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = clients.answer(line.split(" "));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = "! " + problem;
            }
            System.out.println("> " + answer);
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "start": // name, ZooKeeper, group, topic:… or filter:…, streams, settings
                readers.put(words[1], new Reader(
                    words[1], words[2], words[3], words[4], Integer.parseInt(words[5]), words, 6));
                return "";
            case "allow": // name, how many records
                readers.get(words[1]).allowed.release(Integer.parseInt(words[2]));
                return "";
            case "count":
                return "" + readers.get(words[1]).count.get();
            case "seen":
                return String.join(" ", readers.get(words[1]).seen);
            case "commit":
                readers.get(words[1]).connector.commitOffsets();
                return "";
            case "stop":
                readers.remove(words[1]).connector.shutdown();
                return "";
            case "produce":
                return produce(words);
            case "partition": // kind of key, key, how many partitions
                return partition(words);
            case "before": // port, topic, partition, time, how many
                return before(words);
            case "fetch": // port, topic, partition, offset
                return fetch(words);
            case "keep": // version, port, group, topic, partition, offset, metadata
                return keep(words);
            case "kept": // version, port, group, topic, partition
                return kept(words);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** port, topic, first, how many, codec, sync or async. The value is the number, the key its last digit. */
    String produce(String[] words) {
        Properties settings = new Properties();
        settings.put("metadata.broker.list", "127.0.0.1:" + words[1]);
        settings.put("request.required.acks", "-1");
        settings.put("compression.codec", words[5]);
        settings.put("producer.type", words[6]);
        settings.put("message.send.max.retries", "60");
        settings.put("retry.backoff.ms", "500");
        Producer<byte[], byte[]> producer = new Producer<>(new ProducerConfig(settings));
        int first = Integer.parseInt(words[3]);
        List<KeyedMessage<byte[], byte[]>> messages = new ArrayList<>();
        for (int i = first; i < first + Integer.parseInt(words[4]); i++) {
            byte[] key = Integer.toString(i % 10).getBytes();
            messages.add(new KeyedMessage<>(words[2], key, i, Integer.toString(i).getBytes()));
        }
        producer.send(messages);
        producer.close();
        return "";
    }

    String partition(String[] words) {
        int count = Integer.parseInt(words[3]);
        switch (words[1]) {
            case "text":
                return "" + new DefaultPartitioner(null).partition(words[2], count);
            case "int":
                return "" + new DefaultPartitioner(null).partition(Integer.valueOf(words[2]), count);
            case "long":
                return "" + new DefaultPartitioner(null).partition(Long.valueOf(words[2]), count);
            default:
                return "" + new ByteArrayPartitioner(null).partition(words[2].getBytes(), count);
        }
    }

    static SimpleConsumer simple(String port) {
        return new SimpleConsumer("127.0.0.1", Integer.parseInt(port), 60000, 1 << 20, "simple");
    }

    String before(String[] words) {
        SimpleConsumer consumer = simple(words[1]);
        TopicAndPartition partition = new TopicAndPartition(words[2], Integer.parseInt(words[3]));
        Map<TopicAndPartition, PartitionOffsetRequestInfo> asked = new HashMap<>();
        asked.put(partition, new PartitionOffsetRequestInfo(
            Long.parseLong(words[4]), Integer.parseInt(words[5])));
        OffsetResponse found = consumer.getOffsetsBefore(new OffsetRequest(asked, (short) 0, "simple"));
        consumer.close();
        short error = found.errorCode(partition.topic(), partition.partition());
        List<String> offsets = new ArrayList<>();
        for (long offset : found.offsets(partition.topic(), partition.partition())) {
            offsets.add("" + offset);
        }
        return error + " " + String.join(",", offsets);
    }

    String fetch(String[] words) {
        SimpleConsumer consumer = simple(words[1]);
        int partition = Integer.parseInt(words[3]);
        FetchResponse found = consumer.fetch(new FetchRequestBuilder().clientId("simple")
            .addFetch(words[2], partition, Long.parseLong(words[4]), 1 << 20).build());
        consumer.close();
        List<String> records = new ArrayList<>();
        for (MessageAndOffset record : found.messageSet(words[2], partition)) {
            byte[] value = new byte[record.message().payload().remaining()];
            record.message().payload().get(value);
            records.add(record.offset() + "=" + new String(value));
        }
        return found.errorCode(words[2], partition) + " " + found.highWatermark(words[2], partition) + " "
            + String.join(",", records);
    }

    String keep(String[] words) {
        SimpleConsumer consumer = simple(words[2]);
        TopicAndPartition partition = new TopicAndPartition(words[4], Integer.parseInt(words[5]));
        Map<TopicAndPartition, OffsetAndMetadata> offsets = new HashMap<>();
        offsets.put(partition, new OffsetAndMetadata(Long.parseLong(words[6]), words[7], -1L));
        Object code = consumer.commitOffsets(
            new OffsetCommitRequest(words[3], offsets, 7, "simple", Short.parseShort(words[1]))
        ).errors().get(partition);
        consumer.close();
        return "" + code;
    }

    String kept(String[] words) {
        SimpleConsumer consumer = simple(words[2]);
        TopicAndPartition partition = new TopicAndPartition(words[4], Integer.parseInt(words[5]));
        OffsetMetadataAndError found = consumer.fetchOffsets(new OffsetFetchRequest(
            words[3], Collections.singletonList(partition), Short.parseShort(words[1]), 7, "simple")
        ).offsets().get(partition);
        consumer.close();
        return found.error() + " " + found.offset() + " " + found.metadata();
    }
}
