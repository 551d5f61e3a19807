// Jobs submits one durable completion, prints its text while the server writes it, and then its result.
// Start it again with the same key, also after the server was killed: it attaches to the same job.
//
//	go run ./examples/jobs -server http://127.0.0.1:8080 -key report-1 "Once upon a time"
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/shoal-llm/shoal/client"
)

func main() {
	server := flag.String("server", "http://127.0.0.1:8080", "address of the API")
	key := flag.String("key", "", "idempotency key: one job for each")
	tokens := flag.Int("tokens", 64, "most tokens of the answer")
	flag.Parse()
	prompt := strings.Join(flag.Args(), " ")
	if *key == "" || prompt == "" {
		log.Fatal("give a -key and a prompt")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, client.New(*server, os.Getenv("SHOAL_API_KEY")), *key, prompt, *tokens); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, c *client.Client, key, prompt string, tokens int) error {
	job, err := c.Submit(ctx, key, map[string]any{"prompt": prompt, "max_tokens": tokens, "temperature": 0})
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("the server refuses the job: %d %s", refused.Status, refused.Code)
	case err != nil:
		return err
	}
	fmt.Printf("%s is %s\n", job.ID, job.State)
	for event, err := range c.Watch(ctx, job.ID, 0) { // reconnects, also to a restarted server
		if err != nil {
			return err
		}
		fmt.Print(event.Text)
	}
	result, err := c.Result(ctx, job.ID)
	if err != nil {
		return err
	}
	fmt.Printf("\nresult: %d bytes\n", len(result))
	return nil
}
