// A conversation by segmentio/kafka-go: records to each topic, all of them back as a member of a group, idle polls.
//
//	segmentio BOOTSTRAP GROUP TOPIC...
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	records = 10
	idle    = 3 * time.Second
)

func main() {
	bootstrap, group, topics := os.Args[1], os.Args[2], os.Args[3:]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	writer := &kafka.Writer{
		Addr:         kafka.TCP(bootstrap),
		BatchTimeout: time.Millisecond,
		// Left alone, it sends the name of the host.
		Transport: &kafka.Transport{ClientID: "segmentio-producer"},
	}
	for number := range records {
		for _, topic := range topics {
			check(writer.WriteMessages(ctx, kafka.Message{Topic: topic, Value: fmt.Appendf(nil, "record %d", number)}))
		}
	}
	check(writer.Close())

	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: group, GroupTopics: topics, StartOffset: kafka.FirstOffset,
		MaxWait: 500 * time.Millisecond, Dialer: &kafka.Dialer{ClientID: "segmentio-consumer"},
	})
	for range records * len(topics) {
		_, err := reader.ReadMessage(ctx)
		check(err)
	}
	quiet, end := context.WithTimeout(ctx, idle)
	defer end()
	if _, err := reader.ReadMessage(quiet); !errors.Is(err, context.DeadlineExceeded) {
		log.Fatal("a record too many: ", err)
	}
	check(reader.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
