package peers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// natsServer is JetStream with sync_interval always. The server runs inside the process
// of the load; its clients reach it over TCP.
type natsServer struct {
	server *server.Server
	conns  []*nats.Conn
	stream []nats.JetStreamContext
	flying []nats.PubAckFuture
	waited int
	sent   int
}

const (
	// natsConns is how many connections the producers share.
	natsConns  = 16
	natsWithin = 30 * time.Second
	natsKeeps  = 512 << 20
)

func (n *natsServer) Open(_ context.Context, s drive.Setup) (err error) {
	n.server, err = server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: s.Dir, SyncAlways: true, NoSigs: true, NoLog: true,
		JetStreamMaxStore: s.StoreBytes, JetStreamMaxMemory: 64 << 20,
	})
	if err != nil {
		return err
	}
	go n.server.Start()
	if !n.server.ReadyForConnections(natsWithin) {
		return fmt.Errorf("the server is not ready after %v", natsWithin)
	}
	n.flying = make([]nats.PubAckFuture, s.InFlight)
	for range min(s.Producers, natsConns) {
		if err := n.connect(s.InFlight); err != nil {
			return err
		}
	}
	_, err = n.stream[0].AddStream(&nats.StreamConfig{
		Name: "S", Subjects: []string{"s"}, Storage: nats.FileStorage, MaxBytes: min(natsKeeps, s.StoreBytes/2), Discard: nats.DiscardOld, Duplicates: time.Second,
	})
	return err
}

func (n *natsServer) connect(inFlight int) error {
	c, err := nats.Connect(n.server.ClientURL())
	if err != nil {
		return err
	}
	n.conns = append(n.conns, c)
	js, err := c.JetStream(nats.PublishAsyncMaxPending(inFlight+1), nats.MaxWait(natsWithin))
	if err != nil {
		return err
	}
	n.stream = append(n.stream, js)
	return nil
}

func (n *natsServer) Append(producer int, record []byte) error {
	_, err := n.stream[producer%len(n.stream)].Publish("s", record)
	return err
}

func (n *natsServer) Submit(record []byte) error {
	f, err := n.stream[0].PublishAsync("s", record)
	n.flying[n.sent%len(n.flying)] = f
	n.sent++
	return err
}

func (n *natsServer) Wait() error {
	f := n.flying[n.waited%len(n.flying)]
	n.waited++
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-time.After(natsWithin):
		return errors.New("no answer")
	}
}

func (n *natsServer) Close() error {
	for _, c := range n.conns {
		c.Close()
	}
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
	}
	return nil
}
