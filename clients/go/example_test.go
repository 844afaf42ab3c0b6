package walsidecar_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

func connect() (client *walsidecar.Client, end func()) {
	path, stop := walsidecar.StartExample()

	c, err := walsidecar.Dial(context.Background(), path)
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { _ = c.Close(); stop() }
}

// Append a record and read the stream back.
func Example() {
	client, end := connect() // client, err := walsidecar.Dial(ctx, "./walsidecar-data/wal.sock")
	defer end()
	ctx := context.Background()

	result, err := client.Append(ctx, "orders", []byte("first order"), walsidecar.WithHeader("type", []byte("order")))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("durable at offset", result.Offset)

	for record, err := range client.Read(ctx, "orders") {
		if err != nil {
			log.Fatal(err)
		}
		kind, _ := record.Headers.Get("type")
		fmt.Printf("%d %s: %s\n", record.Offset, kind, record.Data)
	}
	// Output:
	// durable at offset 0
	// 0 order: first order
}

// Keep many records in flight from one goroutine.
func ExampleClient_Submit() {
	client, end := connect()
	defer end()
	ctx := context.Background()

	var tickets []walsidecar.Ticket
	for i := range 1000 {
		ticket, err := client.Submit(ctx, "events", fmt.Append(nil, i))
		if err != nil {
			log.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	for _, ticket := range tickets {
		if _, err := ticket.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	info, err := client.Stat(ctx, "events")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.NextOffset, "records")
	// Output: 1000 records
}

// Append to several streams, all or nothing.
func ExampleClient_AppendBatch() {
	client, end := connect()
	defer end()

	result, err := client.AppendBatch(context.Background(), []walsidecar.Entry{
		{Stream: "account/1", Data: []byte("-10")},
		{Stream: "account/2", Data: []byte("+10")},
		{Stream: "audit", Data: []byte("moved 10")},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, placed := range result.Placed {
		fmt.Println(placed.Stream, placed.First)
	}
	// Output:
	// account/1 0
	// account/2 0
	// audit 0
}

// Two writers compete for the next offset; the later one learns that it lost.
func ExampleExpectOffset() {
	client, end := connect()
	defer end()
	ctx := context.Background()

	if _, err := client.Append(ctx, "leader", []byte("node a"), walsidecar.ExpectOffset(0)); err != nil {
		log.Fatal(err)
	}
	_, err := client.Append(ctx, "leader", []byte("node b"), walsidecar.ExpectOffset(0))
	var refusal *walsidecar.Error
	if errors.As(err, &refusal) && errors.Is(err, walsidecar.ErrPreconditionFailed) {
		fmt.Println("another was first; the stream now ends at", *refusal.Actual)
	}
	// Output: another was first; the stream now ends at 1
}

// A source that replays after a crash appends each of its changes once.
func ExampleWithProducer() {
	client, end := connect()
	defer end()
	ctx := context.Background()

	changes := map[uint64]string{100: "insert", 140: "update", 155: "delete"}
	for _, lsn := range []uint64{100, 140, 155} {
		if _, err := client.Append(ctx, "changes", []byte(changes[lsn]), walsidecar.WithProducer("postgres", lsn)); err != nil {
			log.Fatal(err)
		}
	}

	// After a restart: go on behind what is in the log.
	producer, err := client.Producer(ctx, "postgres")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("resume after", producer.LastSequence)

	again, err := client.Append(ctx, "changes", []byte("update"), walsidecar.WithProducer("postgres", 140))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("duplicate:", again.Duplicate)
	// Output:
	// resume after 155
	// duplicate: true
}

// Follow a stream; what was trimmed is a gap and not silence.
func ExampleClient_Follow() {
	client, end := connect()
	defer end()
	ctx := context.Background()
	for i := range 4 {
		if _, err := client.Append(ctx, "s", fmt.Append(nil, "record ", i)); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := client.Trim(ctx, "s", 2); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(ctx)
	for record, err := range client.Follow(ctx, "s", walsidecar.FromOffset(0), walsidecar.OnCaughtUp(func(next uint64) {
		fmt.Println("caught up, next is", next)
		cancel() // an application would go on
	})) {
		var gap *walsidecar.Gap
		switch {
		case errors.As(err, &gap):
			fmt.Println(gap)
		case errors.Is(err, context.Canceled):
			fmt.Println("done")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Printf("%s\n", record.Data)
		}
	}
	// Output:
	// gap: offsets [0, 2) of stream "s" are trimmed
	// record 2
	// record 3
	// caught up, next is 4
	// done
}

// A wait that was given up leaves the record's outcome unknown until it is resolved.
func ExampleTicket_Wait() {
	client, end := connect()
	defer end()
	ctx := context.Background()

	ticket, err := client.Submit(ctx, "s", []byte("record"))
	if err != nil {
		log.Fatal(err)
	}
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := ticket.Wait(impatient); errors.Is(err, walsidecar.ErrOutcomeUnknown) {
		result, err := ticket.Wait(ctx) // the record is on its way all the same
		fmt.Println("offset", result.Offset, err)
	}
}
