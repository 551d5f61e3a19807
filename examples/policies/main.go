// Policies answers one prompt under several cache policies, and prints how many bytes of cache
// each answer holds.
//
//	go run ./examples/policies -model models/fry
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"

	"github.com/shoal-llm/shoal/cluster"
)

// policies keep, in this order: every token, the newest 252 and the first 4, and the 256 tokens
// of the prompt besides that its last 64 attend to most.
var policies = []string{"full", "streaming:sink=4,recent=252", "snapstream:sink=4,recent=252,topk=256"}

func main() {
	model := flag.String("model", "models/fry", "model folder or .gguf file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *model); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, model string) error {
	c, err := cluster.New(ctx, cluster.LocalConfig{
		KVBudget: 256 << 20,
		Serve:    cluster.ServeConfig{Model: model, Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	text, err := cluster.LoadTokenizer(model)
	if err != nil {
		return err
	}
	prompt := text.Encode(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 120), true)
	fmt.Printf("a prompt of %d tokens\n", len(prompt))
	for _, policy := range policies {
		bytes, answer, err := complete(ctx, c, text, prompt, policy)
		if err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		fmt.Printf("%-40s %9d bytes of cache: %q\n", policy, bytes, answer)
	}
	return nil
}

// complete returns the answer under a policy, and the most bytes that its cache had.
func complete(ctx context.Context, c *cluster.Local, text *cluster.Tokenizer, prompt []int32,
	policy string) (bytes int64, answer string, err error) {
	request := cluster.NewRequest(policy, prompt, 48)
	request.Sampling.Temperature = 0
	request.Policy = policy
	request.NoCache = true // the prompts of this program share a prefix
	events, err := c.Submit(ctx, request)
	if err != nil {
		return 0, "", err
	}
	var tokens []int32
	for e := range events {
		if e.Err != nil {
			return 0, "", e.Err
		}
		if e.Token != cluster.NoToken {
			tokens = append(tokens, e.Token)
		}
		for _, s := range c.Cluster().Sequences {
			if s.State == "decoding" {
				bytes = max(bytes, s.KVBytes)
			}
		}
	}
	return bytes, text.Decode(tokens, true), nil
}
