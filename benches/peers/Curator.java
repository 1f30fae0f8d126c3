import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Contends for one lock with Curator's InterProcessMutex. Standard input: the servers and the path of the lock; then,
 * after "ready" was answered, the end of the contention and the length of a hold, in nanoseconds. Standard output: four
 * times for every hold (acquire called, acquired, release called, released), then "end". The clock is CLOCK_MONOTONIC.
 */
final class Curator {
    public static void main(String[] args) {
        int status = 1;
        try {
            contend();
            status = 0;
        } catch (Exception error) {
            error.printStackTrace();
        } finally {
            // The client's threads would keep the process alive.
            System.exit(status);
        }
    }

    private static void contend() throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String[] place = input.readLine().split(" ");
        CuratorFramework client = CuratorFrameworkFactory.newClient(place[0], 10_000, 10_000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = new InterProcessMutex(client, place[1]);
        System.out.println("ready");
        String[] order = input.readLine().split(" ");
        long until = Long.parseLong(order[0]);
        long hold = Long.parseLong(order[1]);
        StringBuilder holds = new StringBuilder();
        while (System.nanoTime() < until) {
            long called = System.nanoTime();
            mutex.acquire();
            long acquired = System.nanoTime();
            if (hold > 0) {
                Thread.sleep(hold / 1_000_000, (int) (hold % 1_000_000));
            }
            long releaseCalled = System.nanoTime();
            mutex.release();
            long released = System.nanoTime();
            holds.append(called + " " + acquired + " " + releaseCalled + " " + released + "\n");
        }
        System.out.println(holds + "end");
        System.out.flush();
    }
}
