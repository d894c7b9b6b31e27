// A conversation by franz-go: records to each topic, all of them back as a member of a group, some idle polls, a commit.
//
//	franz BOOTSTRAP GROUP next|classic TOPIC...
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	records = 10
	idle    = 3 * time.Second
)

func main() {
	bootstrap, group, protocol, topics := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if protocol == "next" {
		// Makes franz-go use the group protocol of KIP-848, which it calls a beta.
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	producer := client(kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-producer"))
	for number := range records {
		for _, topic := range topics {
			record := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "record %d", number)}
			if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
				log.Fatal(err)
			}
		}
	}
	producer.Close()

	consumer := client(
		kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-consumer"), kgo.WithContext(ctx),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond),
	)
	for received := 0; received < records*len(topics); {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		received += fetches.NumRecords()
	}
	quiet, end := context.WithTimeout(ctx, idle)
	consumer.PollFetches(quiet)
	end()
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		log.Fatal(err)
	}
	if err := consumer.LeaveGroupContext(ctx); err != nil {
		log.Fatal(err)
	}
	consumer.Close()
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	return made
}
