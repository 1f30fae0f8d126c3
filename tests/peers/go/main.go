// Contends for one lock of redsync or etcd, which is the argument. The lines are those of the programs in benches/peers.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

// A lock that waits until it is acquired, or gives up with false.
type lock interface {
	acquire() (bool, error)
	release() error
}

type redsyncLock struct{ mutex *redsync.Mutex }

func newRedsync(urls []string, key string) (lock, error) {
	var pools []redis.Pool
	for _, url := range urls {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			return nil, err
		}
		client := goredislib.NewClient(options)
		if err := client.Ping(context.Background()).Err(); err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(client))
	}
	return redsyncLock{redsync.New(pools...).NewMutex(key)}, nil
}

// It gives up after 32 attempts. Any other error is none of a lock that others hold.
func (lock redsyncLock) acquire() (bool, error) {
	err := lock.mutex.Lock()
	var taken *redsync.ErrTaken
	if errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken) {
		return false, nil
	}
	return err == nil, err
}

func (lock redsyncLock) release() error {
	_, err := lock.mutex.Unlock()
	return err
}

type etcdLock struct{ mutex *concurrency.Mutex }

func newEtcd(endpoints []string, key string) (lock, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client)
	if err != nil {
		return nil, err
	}
	return etcdLock{concurrency.NewMutex(session, "/"+key)}, nil
}

func (lock etcdLock) acquire() (bool, error) {
	return true, lock.mutex.Lock(context.Background())
}

func (lock etcdLock) release() error {
	return lock.mutex.Unlock(context.Background())
}

func contend(lock lock, until, hold int64) ([]string, error) {
	var holds []string
	for now() < until {
		called := now()
		for {
			acquired, err := lock.acquire()
			if err != nil {
				return nil, err
			}
			if acquired {
				break
			}
			if now() >= until {
				return holds, nil
			}
		}
		acquired := now()
		if hold > 0 {
			time.Sleep(time.Duration(hold))
		}
		releaseCalled := now()
		if err := lock.release(); err != nil {
			return nil, err
		}
		holds = append(holds, fmt.Sprint(called, " ", acquired, " ", releaseCalled, " ", now()))
	}
	return holds, nil
}

// CLOCK_MONOTONIC, in nanoseconds.
func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func run() error {
	// Asked by the set-up, whether it starts at all.
	if os.Args[1] == "version" {
		return nil
	}
	input := bufio.NewReader(os.Stdin)
	var servers, key string
	if _, err := fmt.Fscanln(input, &servers, &key); err != nil {
		return err
	}
	kinds := map[string]func([]string, string) (lock, error){"redsync": newRedsync, "etcd": newEtcd}
	lock, err := kinds[os.Args[1]](strings.Split(servers, ","), key)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var until, hold int64
	if _, err := fmt.Fscanln(input, &until, &hold); err != nil {
		return err
	}
	holds, err := contend(lock, until, hold)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(append(holds, "end"), "\n"))
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
