package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/shoal-llm/shoal/api"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/sampler"
	"github.com/shoal-llm/shoal/tokenizer"
)

// A whole cluster within a program: the batcher, sockets and arithmetic of `shoal up`,
// without a network. Two sockets give the bits of one.
func ExampleNew() {
	const model = "../models/fry" // a folder from Hugging Face, or a .gguf file
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := cluster.New(ctx, cluster.LocalConfig{
		Sockets:  2,
		KVBudget: 64 << 20, // bytes of cache, of each socket
		Serve:    cluster.ServeConfig{Model: model, Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	text, err := tokenizer.Load(model)
	if err != nil {
		fmt.Println(err)
		return
	}
	sampling := sampler.Default()
	sampling.Temperature = 0
	events, err := c.Submit(ctx, &api.Request{
		ID:     "1",
		Prompt: text.Encode("func add(a, b int) int {", true), MaxTokens: 7,
		Sampling: sampling, PromptLogprobs: -1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var tokens []int32
	for e := range events { // one a token; the last says why it ended
		if e.Err != nil {
			fmt.Println(e.Err)
			return
		}
		if e.Token != api.NoToken {
			tokens = append(tokens, e.Token)
		}
	}
	fmt.Printf("%q\n", text.Decode(tokens, true))
	// Output: " return a + b }\n\nfunc add"
}
