// Producers of Kafka's Java client; see the package's docstring for their arguments. Run as a single source file.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class Producers {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        String topic = arguments[2];
        ExecutorService pool = Executors.newFixedThreadPool(count);
        List<KafkaProducer<byte[], byte[]>> producers = made(arguments, count);
        answer();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = orders.readLine()) != null; ) {
            String[] order = line.split(" ");
            switch (order[0]) {
                case "send" -> {
                    byte[] value = new byte[Integer.parseInt(order[1])];
                    all(pool, producers, producer -> producer.send(new ProducerRecord<>(topic, value)).get());
                    answer();
                }
                case "stop" -> {
                    all(pool, producers, producer -> {
                        producer.close();
                        return null;
                    });
                    System.exit(0);
                }
                case "leave" -> Runtime.getRuntime().halt(0);
                default -> throw new IllegalArgumentException("no such order: " + line);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private interface Action {
        Object on(KafkaProducer<byte[], byte[]> producer) throws Exception;
    }

    private static List<KafkaProducer<byte[], byte[]>> made(String[] arguments, int count) {
        Properties settings = new Properties();
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        return IntStream.range(0, count).mapToObj(number -> {
            settings.put("client.id", arguments[0] + "-" + number);
            return new KafkaProducer<byte[], byte[]>(settings);
        }).toList();
    }

    // All at once: what is done to many clients finds them equally old, and equally silent.
    private static void all(ExecutorService pool, List<KafkaProducer<byte[], byte[]>> producers, Action action)
            throws InterruptedException {
        List<Callable<Object>> actions = new ArrayList<>();
        producers.forEach(producer -> actions.add(() -> action.on(producer)));
        for (Future<Object> result : pool.invokeAll(actions)) {
            try {
                result.get();
            } catch (java.util.concurrent.ExecutionException error) {
                System.err.println(error.getCause());
            }
        }
    }

    private static void answer() {
        System.out.println("done");
    }
}
