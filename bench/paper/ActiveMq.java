// ActiveMQ classic for the paper's experiment: its broker, its producer and its consumer, one a process.
//
// Called by activemq.py through Java's source launcher. `broker DIRECTORY PORT SYNC` runs until SIGTERM, SYNC being
// the journal's flush strategy; `produce PORT QUEUE COUNT BYTES BATCH` sends persistent messages, asynchronously
// with BATCH 0, in transactions of BATCH otherwise; `consume PORT QUEUE COUNT` acknowledges automatically.
// The two clients print messages per second.

import java.io.File;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

public final class ActiveMq {
    private static final long RECEIVE_TIMEOUT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "broker" -> broker(new File(args[1]), Integer.parseInt(args[2]), args[3]);
            case "produce" -> produce(factory(args[1]), args[2], Integer.parseInt(args[3]),
                    Integer.parseInt(args[4]), Integer.parseInt(args[5]));
            case "consume" -> consume(factory(args[1]), args[2], Integer.parseInt(args[3]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static ActiveMQConnectionFactory factory(String port) {
        return new ActiveMQConnectionFactory("tcp://127.0.0.1:" + port);
    }

    private static void broker(File directory, int port, String sync) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(directory, "kahadb"));
        store.setJournalDiskSyncStrategy(sync);
        BrokerService broker = new BrokerService();
        broker.setUseJmx(false);
        broker.setDataDirectoryFile(directory);
        broker.setPersistenceAdapter(store);
        broker.addConnector("tcp://127.0.0.1:" + port);
        broker.start();
        broker.waitUntilStopped();
    }

    private static void produce(ActiveMQConnectionFactory factory, String queue, int count, int bytes, int batch)
            throws Exception {
        factory.setUseAsyncSend(batch == 0);
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(batch > 0, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        byte[] body = new byte[bytes];
        long began = System.nanoTime();
        for (int i = 1; i <= count; i++) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(body);
            producer.send(message);
            if (batch > 0 && (i % batch == 0 || i == count)) {
                session.commit();
            }
        }
        connection.close();
        print(count, began);
    }

    private static void consume(ActiveMQConnectionFactory factory, String queue, int count) throws Exception {
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            if (consumer.receive(RECEIVE_TIMEOUT_MS) == null) {
                throw new IllegalStateException(i + " of " + count + " messages came");
            }
        }
        print(count, began);
        connection.close();
    }

    private static void print(int count, long began) {
        System.out.printf("%.1f%n", count / ((System.nanoTime() - began) / 1e9));
    }
}
