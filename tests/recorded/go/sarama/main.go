// A conversation by sarama: records to each topic, all of them back as a member of a group, some idle polls, a commit.
//
//	sarama BOOTSTRAP GROUP TOPIC...
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const (
	records = 10
	idle    = 3 * time.Second
)

func main() {
	bootstrap, group, topics := []string{os.Args[1]}, os.Args[2], os.Args[3:]
	producer, err := sarama.NewSyncProducer(bootstrap, config("sarama-producer"))
	check(err)
	for number := range records {
		for _, topic := range topics {
			value := sarama.StringEncoder(fmt.Sprintf("record %d", number))
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: value})
			check(err)
		}
	}
	check(producer.Close())

	consumer, err := sarama.NewConsumerGroup(bootstrap, group, config("sarama-consumer"))
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reader := &reader{missing: int64(records * len(topics)), done: cancel}
	check(consumer.Consume(ctx, topics, reader))
	if atomic.LoadInt64(&reader.missing) != 0 {
		log.Fatal("records are missing")
	}
	check(consumer.Close())
}

func config(clientID string) *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// reader is done some time after the last record: by then the group's offsets are committed, and polls came back empty.
type reader struct {
	missing int64
	done    context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		if atomic.AddInt64(&r.missing, -1) == 0 {
			time.AfterFunc(idle, r.done)
		}
	}
	return nil
}
