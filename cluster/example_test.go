package cluster_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/shoal-llm/shoal/cluster"
)

// A cluster of two sockets in this process continues a text. One socket gives the same tokens.
func ExampleNew() {
	const model = "../models/fry"
	ctx := context.Background()
	c, err := cluster.New(ctx, cluster.LocalConfig{
		Sockets:  2,
		KVBudget: 64 << 20, // bytes of cache for each socket
		Serve:    cluster.ServeConfig{Model: model, Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	text, err := cluster.LoadTokenizer(model)
	if err != nil {
		log.Fatal(err)
	}
	request := cluster.NewRequest("1", text.Encode("func add(a, b int) int {", true), 7)
	request.Sampling.Temperature = 0
	events, err := c.Submit(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	var tokens []int32
	for e := range events { // one for each token; the last has a reason
		if e.Err != nil {
			log.Fatal(e.Err)
		}
		if e.Token != cluster.NoToken {
			tokens = append(tokens, e.Token)
		}
	}
	fmt.Printf("%q\n", text.Decode(tokens, true))
	// Output: " return a + b }\n\nfunc add"
}
