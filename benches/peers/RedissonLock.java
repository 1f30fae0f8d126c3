import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Contends for one lock of Redisson: RLock, or RFairLock with the argument "fair". The lines are those of Curator.java, with
 * the URL of the server in place of the hosts.
 */
final class RedissonLock {
    public static void main(String[] args) {
        int status = 1;
        try {
            contend(args[0].equals("fair"));
            status = 0;
        } catch (Exception error) {
            error.printStackTrace();
        } finally {
            // The client's threads would keep the process alive.
            System.exit(status);
        }
    }

    private static void contend(boolean fair) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String[] place = input.readLine().split(" ");
        Config config = new Config();
        // For one lock one connection is used at a time, and another one for messages. waiting() in peers.rs has these numbers.
        config.useSingleServer().setAddress(place[0]).setConnectionMinimumIdleSize(1).setConnectionPoolSize(2);
        config.setThreads(2).setNettyThreads(2);
        RedissonClient client = Redisson.create(config);
        RLock lock = fair ? client.getFairLock(place[1]) : client.getLock(place[1]);
        System.out.println("ready");
        String[] order = input.readLine().split(" ");
        long until = Long.parseLong(order[0]);
        long hold = Long.parseLong(order[1]);
        StringBuilder holds = new StringBuilder();
        while (System.nanoTime() < until) {
            long called = System.nanoTime();
            lock.lock();
            long acquired = System.nanoTime();
            if (hold > 0) {
                Thread.sleep(hold / 1_000_000, (int) (hold % 1_000_000));
            }
            long releaseCalled = System.nanoTime();
            lock.unlock();
            long released = System.nanoTime();
            holds.append(called + " " + acquired + " " + releaseCalled + " " + released + "\n");
        }
        System.out.println(holds + "end");
        System.out.flush();
    }
}
